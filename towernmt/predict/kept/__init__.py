"""Graphs of searches that are kept beside a run's checkpoints, optimised, so that the next start builds none."""
