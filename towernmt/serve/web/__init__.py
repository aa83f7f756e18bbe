"""What all interfaces of the server share: reading requests, callers and their rates, metrics, logs."""
