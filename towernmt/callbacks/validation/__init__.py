"""Translating validation text, scoring it, and what acts on a score."""
