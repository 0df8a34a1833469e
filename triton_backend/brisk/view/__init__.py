"""A view of model repositories in which every entry is complete, for Triton to read at its start.

Triton spends a second and a stub on each entry's auto-completion, whatever the entry says, unless
auto-completion is switched off. ``brisk serve`` completes the entries that Brisk serves, and
switches it off if the server reads its repositories once (``--model-control-mode none``, Triton's
default). ``plan`` decides whether nothing would be lost, ``mirror`` writes the directories. A view
does not change after the start, and nothing here writes to a user's repository. A server that
reads its repositories again completes entries itself; ``brisk.triton.server_preload`` saves it the
second.
"""
