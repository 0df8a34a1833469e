"""Builds the sample models of ``model_repository`` and their expected answers."""
