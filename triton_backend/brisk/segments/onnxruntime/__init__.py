"""ONNX Runtime: the library, options and sessions. Nothing else imports it."""
