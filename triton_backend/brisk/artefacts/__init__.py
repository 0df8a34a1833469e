"""Artefacts: what is kept of a model between its starts, in files that are never trusted."""
