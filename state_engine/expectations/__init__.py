"""What outputs and states are expected to be. The only package that imports Great Expectations."""
