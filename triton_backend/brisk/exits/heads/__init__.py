"""The heads of exits: predictor, distance gate, selector, and their ONNX form."""
