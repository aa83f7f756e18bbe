"""Foundations of all other packages: settings, errors, files, the machine, and TensorFlow's graph and session."""
