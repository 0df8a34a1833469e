"""Chooses which job runs next. Uses only the standard library, so it is tested in virtual time."""
