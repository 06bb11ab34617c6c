"""Health of jobs and roots: what is wrong with them, and what repairs it."""
