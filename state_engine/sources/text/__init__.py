"""Text files as rows: CSV and JSON."""
