"""TensorFlow's session hooks as callbacks, and callbacks as hooks."""
