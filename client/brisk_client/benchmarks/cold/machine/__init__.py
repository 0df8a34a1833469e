"""What processes find before the clock starts."""
