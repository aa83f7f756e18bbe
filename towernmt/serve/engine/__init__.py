"""What translates behind the server: models by direction, each with a thread that batches what has queued."""
