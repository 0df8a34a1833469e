"""How torch computes each operator on a GPU; enter by `catalogue`. Import no executor here."""
