"""Names of the files that an entry's version directory holds."""

MODEL_FILE = "model.onnx"
PIPELINE_FILE = "pipeline.json"
"""Where another entry has MODEL_FILE: several networks that answer one request."""
CONFIG_FILE = "config.pbtxt"
"""Of the entry itself, beside its version directories."""
