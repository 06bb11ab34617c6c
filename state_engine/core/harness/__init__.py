"""A job's operator run in memory, for tests of functions."""
