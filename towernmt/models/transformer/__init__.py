"""The Transformer (Vaswani et al. 2017) and its parts."""
