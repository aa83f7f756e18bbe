"""What a reader sees of a run: lines, pictures, summaries."""
