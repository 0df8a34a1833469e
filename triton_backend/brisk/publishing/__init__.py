"""The writing of a model to where other hosts can fetch it (Flashpoint, chapter 5)."""
