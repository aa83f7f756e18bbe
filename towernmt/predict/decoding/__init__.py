"""Finding the best translation: the search, in the graph."""
