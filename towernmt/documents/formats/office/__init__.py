"""Documents of word processors: archives with XML in them."""
