"""The ends of event time, in milliseconds since 1970."""

MIN_TIMESTAMP = -(2**63)
"""The watermark, in milliseconds, of a stream that has none yet."""

MAX_TIMESTAMP = 2**63 - 1
"""The watermark, in milliseconds, of a stream that has ended."""
