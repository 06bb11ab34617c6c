"""Working state and checkpoint storage."""
