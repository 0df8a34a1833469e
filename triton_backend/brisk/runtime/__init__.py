"""The device runtime: a supervisor that never computes and the workers it forks.

``python -m brisk.runtime --device cpu`` starts one; stubs do so on their own.
"""
