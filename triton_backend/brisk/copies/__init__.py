"""Local copies of remote models: what a manifest lists, and which of its bytes are here."""
