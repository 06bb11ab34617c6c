"""Every row on its way to its subtask: order, key groups, event times."""
