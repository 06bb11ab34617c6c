"""State that no micro-batch made: bootstrap, transformation, other keys, erased keys."""
