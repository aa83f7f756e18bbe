"""What a terminal shows and hides, and the signals that come from it."""
