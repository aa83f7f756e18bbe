"""Formats of documents: each reads a file as segments, and writes it with their translations."""
