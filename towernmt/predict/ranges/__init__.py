"""Very many lines, translated in ranges by several workers."""
