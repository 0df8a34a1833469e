"""The client side of Brisk: sample models, a demonstration, and the benchmark runner."""
