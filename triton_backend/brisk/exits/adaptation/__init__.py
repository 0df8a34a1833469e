"""Caches that learn from the traffic (GATI, sections 5.3 and 7.2), as a part of any process.

Who serves caches wires it in like this, in a process of its own at idle priority::

    adapter = Adapter.open(model_file, settings)    # None: no caches, or no reference beside them
    adapter.take(inputs, now_s)                     # each sampled request: arrays by input name
    outcome = adapter.adapt(now_s)                  # at an interval
    if outcome.cascade is not None:
        write_cascade(candidate, outcome.cascade)   # atomic; the runtime tries it

``take`` keeps the inputs until ``adapt``, which runs the base model on the new ones, retrains each
cache (500 ms at most), proves the promise again on rows that trained nothing, and refuses what is
worse, unproved, or worse on the data that the caches were first trained with; ``outcome.reason``
says so in words. Nothing here starts a thread, samples requests, or sleeps. What becomes of a
version that is published is ``brisk.exits.files.versions``' and the runtime's. Samples are
bounded in number and bytes, lie in memory only, and go with the process.
"""
