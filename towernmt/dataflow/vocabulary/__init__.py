"""Vocabularies: text to ids and back."""
