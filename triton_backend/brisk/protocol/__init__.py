"""The protocol between stub and runtime: their messages, and the memory they share.

Standard library and numpy only: this package is imported inside Triton's stub processes.
"""
