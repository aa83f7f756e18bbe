"""What the next token may be: processors of the logits, one a module."""
