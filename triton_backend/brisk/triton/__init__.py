"""The real ``tritonserver``: found, assembled and started; stdlib only.

``locate`` finds an installation, ``backend_directory`` lays out the backends it serves with,
``launch`` starts, watches and stops the process.
"""
