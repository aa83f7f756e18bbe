"""HTTP, for all interfaces of the server: requests, callers and their rates, metrics, log."""
