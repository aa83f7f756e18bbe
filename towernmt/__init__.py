"""towernmt: neural machine translation with tower functions, on tensorpack and TensorFlow graph mode."""

__version__ = "0.1.0"
