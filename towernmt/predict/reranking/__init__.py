"""Another order of the translations that a search has found: by their mutual likeness, or by further models."""
