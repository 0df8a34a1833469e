"""Entries of a repository as the commands read them."""
