"""Lines: what they request, what is found for them, and outputs line by line."""
