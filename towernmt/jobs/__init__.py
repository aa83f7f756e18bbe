"""Training by several supervised workers on Ray, searches for settings with Ray Tune, and adaptation to corrections."""
