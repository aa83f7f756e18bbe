"""Training by supervised workers, and searches for settings."""
