"""``StateEngine``: the front of everything that is done on a state root."""
