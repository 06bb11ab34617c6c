"""Real jobs of this repository, one file each, readable by a newcomer."""
