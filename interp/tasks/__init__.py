"""Tasks: examples and the metric that turns each into one number (see interp.tasks.task)."""
