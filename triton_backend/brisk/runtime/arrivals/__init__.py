"""Models that start while their bytes arrive (Flashpoint, chapter 5). Imported for these alone."""
