"""Elements picked, joined, reshaped and made."""
