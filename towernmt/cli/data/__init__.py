"""Commands that make, store and look at data."""
