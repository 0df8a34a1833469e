"""Requests at the wire and through a server."""
