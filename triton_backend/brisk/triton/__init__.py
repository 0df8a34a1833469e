"""Finds, assembles and starts the real ``tritonserver``; stdlib only.

``locate`` finds an installation, ``backend_directory`` lays out the backends it serves with,
``launch`` starts, watches and stops the process.
"""
