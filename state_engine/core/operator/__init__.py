"""An operator in one subtask during one micro-batch, in plain Python."""
