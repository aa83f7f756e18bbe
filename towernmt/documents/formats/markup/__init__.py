"""Texts with tags: as tokens, with entities, and as documents of segments."""
