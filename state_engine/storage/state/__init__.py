"""State as files: changelogs and bases of keyed state, operator state, written and read in subtasks."""
