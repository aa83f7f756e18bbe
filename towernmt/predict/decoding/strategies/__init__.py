"""What is kept of the candidates: decoding strategies, one a module."""
