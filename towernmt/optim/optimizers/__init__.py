"""Optimizers that TensorFlow lacks in graph mode, each a `tf1.train.Optimizer` whose slots have stable names."""
