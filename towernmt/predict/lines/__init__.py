"""What a single line may ask for, and what comes back for it: options, JSON, retries, going on behind a stop."""
