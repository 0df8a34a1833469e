"""Passes that recognise one operator in several."""
