"""Checkpoints: their files, and giving a model the values in them."""
