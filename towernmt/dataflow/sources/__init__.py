"""Sources of sentence pairs: files, databases and object stores, each as a `Source`; and mixtures of them."""
