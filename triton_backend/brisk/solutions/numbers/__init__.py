"""Element-wise operators, normalisation, reductions."""
