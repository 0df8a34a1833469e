"""Passes that remove or simplify layers."""
