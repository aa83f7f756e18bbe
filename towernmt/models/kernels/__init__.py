"""What depends on the processor: precision and the forms of matrix products."""
