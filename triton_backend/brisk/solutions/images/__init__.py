"""Convolutions, pooling, resizing, detection."""
