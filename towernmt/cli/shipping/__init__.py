"""Commands that bring a trained model to others."""
