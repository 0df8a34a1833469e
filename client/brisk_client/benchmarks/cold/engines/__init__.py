"""The engines whose cold starts are measured, one family a file."""
