"""Models that other systems trained, as runs of ours: a room a system, and what all of them need."""
