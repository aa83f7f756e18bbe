"""Preparation: from text to vocabularies, shards and statistics, and reading the prepared data."""
