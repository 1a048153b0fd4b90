"""What to load, run and save when some inputs changed: a minimum cut."""
