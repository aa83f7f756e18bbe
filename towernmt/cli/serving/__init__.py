"""The commands that serve trained models."""
