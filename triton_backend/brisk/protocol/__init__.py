"""What the stub and the runtime say to each other, and the memory they share.

Standard library and numpy only: this package is imported inside Triton's stub processes.
"""
