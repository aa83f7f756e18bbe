"""Rules for the settings that a user does not specify, by what they decide; see `towernmt.run.automatic_settings`."""
