"""A view of model repositories in which every entry is complete, for Triton to read at its start.

Triton spends a second and a stub on each entry's auto-completion, whatever the entry says, unless
all of it is switched off. ``brisk serve`` completes the entries that Brisk serves itself and
switches it off, if the server reads its repositories once (``--model-control-mode none``, Triton's
default): ``plan`` decides whether nothing would be lost by that, ``mirror`` writes the
directories. Nothing changes a view after its start, and nothing here writes to a user's
repository. A server that reads its repositories again completes entries itself, and
``brisk.triton.server_preload`` saves it the second.
"""
