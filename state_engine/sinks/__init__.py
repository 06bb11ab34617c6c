"""Sinks: where outputs go, exactly once. Files are staged before the commit and published after it."""
