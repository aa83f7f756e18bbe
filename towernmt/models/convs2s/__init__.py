"""The convolutional model (Gehring et al. 2017) and its parts."""
