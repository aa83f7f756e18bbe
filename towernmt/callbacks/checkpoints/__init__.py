"""When checkpoints are saved."""
