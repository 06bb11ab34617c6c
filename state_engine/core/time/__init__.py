"""Event time and processing time: spans, watermarks, timers."""
