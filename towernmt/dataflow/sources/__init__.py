"""Where sentence pairs come from: files, databases and object stores, each as a `Source`; and mixtures of them."""
