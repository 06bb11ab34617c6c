"""Sources: what a job reads, in slices between two positions."""
