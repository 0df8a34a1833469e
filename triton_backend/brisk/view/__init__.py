"""A view of model repositories in which every entry is complete, for Triton to read.

Triton spends a second and a stub on each entry's auto-completion, whatever the entry says, unless
all of it is switched off. ``brisk serve`` completes the entries that Brisk serves itself and
switches it off: ``plan`` decides whether nothing would be lost by that, ``mirror`` makes the
directories, ``keeper`` keeps them up while the server lives and removes them behind it. Nothing
here writes to a user's repository.
"""
