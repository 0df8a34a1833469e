"""Local copies of models that lie elsewhere: what a manifest says, what of it is here already."""
