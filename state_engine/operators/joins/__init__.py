"""Joins of two keyed streams: by an interval of time, and with the row in force."""
