"""Reports of a run: lines of the log, the terminal's status line, summaries for TensorBoard."""
