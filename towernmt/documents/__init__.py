"""Documents: the segments of a text or a file, their translation, and the placement of marks in it."""
