"""The search for settings: many runs with settings drawn from a space, of which the best go on."""
