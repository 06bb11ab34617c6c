"""Real jobs; each one file, readable by a newcomer."""
