"""Prepared data on disk: the manifest, shards, and reading them."""
