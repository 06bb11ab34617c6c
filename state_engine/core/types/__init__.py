"""Types of keys, states and streams: declared, written as text, stored, and changed later."""
