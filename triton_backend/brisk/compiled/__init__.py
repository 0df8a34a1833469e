"""What Brisk computes in C++ of its own: the sources, their compiler, and the loaded library.

Two kinds of calls: a network of small layers (``brisk.native``), and one large layer
(``brisk.solutions.compiled_layer``). Both share the library's helper threads.
"""
