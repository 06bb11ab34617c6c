"""What micro-batches put out, made visible after the commit, exactly once, and withdrawn by restores."""
