"""A training by workers that are started, watched and, after a loss, started again: as many as there is room for."""
