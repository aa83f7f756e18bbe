"""Commands that look at runs which are there: what became of them, beside each other."""
