"""Ready-made operators above the public functions, state and timers; nothing of their own below these."""
