"""Several trained models that translate as one: the mean of what they expect of the next token."""
