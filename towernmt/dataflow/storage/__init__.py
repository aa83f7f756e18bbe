"""Where files lie: local, compressed, HTTP, S3, and the local cache of what is far away."""
