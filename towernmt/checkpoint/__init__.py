"""Checkpoints: files on disk, restoring, averaging, saved runs, and packages as runs."""
