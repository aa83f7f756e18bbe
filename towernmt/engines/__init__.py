"""Engines of others that translate with models of ours; without TensorFlow, until a model must be exported."""
