"""Requests from a socket to the queue and their answers back. Computes nothing."""
