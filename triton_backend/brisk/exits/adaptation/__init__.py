"""Caches that learn from the traffic (GATI, sections 5.3 and 7.2), as a part of any process.

Who serves caches wires it in like this, in a process of its own at idle priority::

    adapter = Adapter.open(model_file, settings)    # None: no caches, or no reference beside them
    adapter.take(inputs, now_s)                     # each sampled request: arrays by input name
    outcome = adapter.adapt(now_s)                  # every ``settings.interval_s``
    if outcome.cascade is not None:
        publish(model_file, outcome.cascade)        # atomic; the runtime swaps by ``revision``

``take`` keeps the inputs until ``adapt``, which runs the base model on the new ones, retrains each
cache (500 ms at most), proves the promise again on rows that trained nothing, and refuses what is
worse, unproved, or worse on the data that the caches were first trained with; ``outcome.reason``
says so in words. Nothing here starts a thread, samples requests, or sleeps: how many requests are
sampled (``settings.share``) and when, is the caller's. ``roll_back(model_file)`` publishes the
version before the last one again, with a new revision, for an audit that finds the last one wrong.
Samples are bounded in number and bytes, lie in memory only, and go with the process.
"""

from brisk.exits.adaptation.adapter import Adapter, Outcome
from brisk.exits.adaptation.publishing import publish, roll_back
from brisk.exits.adaptation.reference import Reference, reference_file, write_reference
from brisk.exits.adaptation.settings import AdaptationSettings
from brisk.exits.adaptation.window import SampleWindow

__all__ = [
    "AdaptationSettings",
    "Adapter",
    "Outcome",
    "Reference",
    "SampleWindow",
    "publish",
    "reference_file",
    "roll_back",
    "write_reference",
]
