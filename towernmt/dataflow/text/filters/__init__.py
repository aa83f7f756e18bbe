"""Filters of pairs by text and by duplicates: one kind a module; `text_filters` and `pair_filter` combine them."""
