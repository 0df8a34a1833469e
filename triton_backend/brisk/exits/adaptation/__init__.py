"""Caches that learn from the traffic (GATI, sections 5.3 and 7.2), as a part of any process.

``Adapter`` is the entry: ``take`` each sampled request, ``adapt`` at an interval, and write the
outcome's cascade, if there is one, for the runtime to try. Nothing here starts a thread, samples
requests, or sleeps; samples are bounded and lie in memory only.
"""
