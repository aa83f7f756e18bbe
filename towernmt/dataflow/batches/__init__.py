"""The order in which pairs are trained on: positions, plans, batches, windows and streams."""
