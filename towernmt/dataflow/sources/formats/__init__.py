"""Formats of files with sentence pairs, a module a format."""
