"""What ends training."""
