"""Marian's model format: `.npz` in float32, and the 8-bit binary that Bergamot and Firefox run."""
