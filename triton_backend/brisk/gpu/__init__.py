"""NVIDIA GPUs: the driver called directly; runs captured as graphs and launched in chunks."""
