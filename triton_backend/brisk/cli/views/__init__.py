"""The commands' output as text, tables and pictures, and the choice of the files they read."""
