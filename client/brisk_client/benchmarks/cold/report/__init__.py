"""Rows, checks, tables and figures of cold starts."""
