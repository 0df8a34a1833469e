"""What both sides know of the host: where the runtime is, and whose processes live."""
