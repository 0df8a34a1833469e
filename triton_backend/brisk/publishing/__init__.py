"""Publishing a model where other hosts can fetch it from (Flashpoint, chapter 5)."""
