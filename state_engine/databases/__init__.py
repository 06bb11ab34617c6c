"""Tables of SQLite and PostgreSQL: those that sinks append to, and those that show a keyed state."""
