"""The parts of `tools/make-results`: pages of docs/benchmarks, from the JSON of their runs."""
