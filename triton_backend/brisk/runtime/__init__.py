"""The device runtime: a supervisor, which never computes, and the workers that it forks.

``python -m brisk.runtime --device cpu`` starts one; stubs start one by themselves.
"""
