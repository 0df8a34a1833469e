"""What `tools/make-results` writes: pages of docs/benchmarks, from the JSON of their runs."""
