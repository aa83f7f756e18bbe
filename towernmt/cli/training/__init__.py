"""Commands that train models, and work on what was trained."""
