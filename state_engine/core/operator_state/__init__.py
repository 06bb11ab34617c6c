"""State that belongs to subtasks: lists, broadcast state, raw bytes, and how they are handed out again."""
