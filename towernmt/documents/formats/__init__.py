"""Formats of texts and files: a module a format, which takes one apart into segments and writes it again."""
