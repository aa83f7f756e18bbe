"""Which source word each word of a translation stands for: from attention to links, pictures and error rates."""
