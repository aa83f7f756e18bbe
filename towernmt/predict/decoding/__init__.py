"""Finding translations in the graph: one loop over `decode_step`, with a strategy, processors and inputs by name."""
