"""The search in LiteRT, which was TensorFlow Lite: builtin operations only."""
