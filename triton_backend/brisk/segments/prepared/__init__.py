"""The prepared form: made, tried, published and read back."""
