"""What an entry asks for: ``config.pbtxt``, completed and checked. Sends nothing."""
