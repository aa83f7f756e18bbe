"""`towernmt translate` with several processes: its options, what a worker does, and what watches them."""
