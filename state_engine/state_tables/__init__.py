"""Keyed states as tables outside of the root: what they show, and how they follow the head."""
