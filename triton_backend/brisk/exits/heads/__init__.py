"""The look-up networks: predictor, distance gate, selector."""
