"""The command ``statelake``."""
