"""What the commands show: text, tables and pictures."""
