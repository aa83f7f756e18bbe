"""THUMT's Transformers (Zhang et al. 2017; Tan et al. 2020): checkpoints of its TensorFlow branch."""
