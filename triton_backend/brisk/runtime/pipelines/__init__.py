"""Requests of pipelines: frames that step through the frames of several networks."""
