"""What the commands show: text, tables and pictures; and the files that they are about."""
