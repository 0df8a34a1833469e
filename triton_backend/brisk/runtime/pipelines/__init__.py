"""Runs pipelines: a request's frame steps through the frames of several networks."""
