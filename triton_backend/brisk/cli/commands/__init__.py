"""The subcommands. Imports that they need beyond options are inside their functions."""
