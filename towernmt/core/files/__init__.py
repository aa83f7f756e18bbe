"""Files that are whole or not there, one writer a directory, checked JSON and YAML, names from outside."""
