"""Published benchmark runs: the JSON of `docs/benchmarks/data`, and the pages made from it."""
