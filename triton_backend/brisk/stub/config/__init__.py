"""Reading, completion and checks of an entry's ``config.pbtxt``, without any connection."""
