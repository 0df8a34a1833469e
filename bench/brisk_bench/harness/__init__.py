"""The needs of every benchmark: command line, servers, machine, summaries."""
