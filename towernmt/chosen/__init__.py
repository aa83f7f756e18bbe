"""Settings that nobody has set: chosen from corpus, limit and machine, each with its reason."""
