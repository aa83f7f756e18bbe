"""What the machine is: its processor, memory and GPUs."""
