"""What every other folder stands on: settings, errors, files, the machine, the terminal."""
