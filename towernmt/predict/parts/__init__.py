"""Very many lines, translated in parts by several processes."""
