"""Small models that their stub computes itself, without the way to the worker and back."""
