"""The networks of `brisk bench cold`, with random weights of sane size."""
