"""The subcommands. What they need beyond options is imported inside of them."""
