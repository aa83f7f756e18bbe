"""Lines of text: normalisation, links of words, filters."""
