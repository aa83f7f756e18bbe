"""Pieces of text and their numbers."""
