"""Artefacts: files about a model that stay between its starts, and are never trusted."""
