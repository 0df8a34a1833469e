"""An ONNX file read in place and cut into segments. Makes no session."""
