"""What runs inside a Spark task: one subtask of an operator."""
