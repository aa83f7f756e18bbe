"""Alignment of the sentences of translated documents: from two files or folders to sentence pairs with scores."""
