"""What is trained for: cross-entropy, R-Drop and guided alignment; and the likelihood of given translations."""
