"""Runs of small layers as one call of machine code.

A call of torch takes microseconds whatever it computes, which is most of the time of a network of
a few hundred thousand multiplications. Here such layers become a table of steps for a small
executor in C++, compiled on the machine it runs on. Without a compiler, or until it has been
compiled, the layers run one by one as ever.
"""
