"""What a stub imports before it is asked for: in the fork server, and while its model loads."""
