"""Locating, assembling and starting the real ``tritonserver``; standard library only.

``locate`` finds an installation, ``backend_directory`` lays out the backends it serves with,
``launch`` starts, watches and stops the process.
"""
