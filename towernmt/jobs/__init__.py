"""Training by several supervised workers on Ray, and searches for settings with Ray Tune."""
