"""What every benchmark needs: command line, servers, machine, summaries."""
