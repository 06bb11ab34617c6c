"""Keyed state: descriptors, one file a kind of state, the table of entries, time to live."""
