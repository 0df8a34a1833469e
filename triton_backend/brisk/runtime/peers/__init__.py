"""Connected stubs: their sockets, and tensors in the memory shared with them. Entry point
``connections.Connections``; knows nothing of models and queues.
"""
