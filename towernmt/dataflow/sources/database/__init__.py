"""A table of a database as a source."""
