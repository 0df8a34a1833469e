"""Checks of the deployment, one a file."""
