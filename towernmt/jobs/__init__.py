"""Training by workers on Ray, searches with Ray Tune, adaptation to corrections, and training with monolingual text."""
