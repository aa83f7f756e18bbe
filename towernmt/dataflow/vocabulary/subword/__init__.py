"""The kinds of vocabulary, one a module, and how each is learned from text."""
