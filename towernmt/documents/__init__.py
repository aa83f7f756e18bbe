"""Texts with markup, and files: what of them is translated, and how marks come back to their words."""
