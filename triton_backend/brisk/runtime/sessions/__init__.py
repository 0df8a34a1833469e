"""Sessions, which compute models, with their frames and learned caches. Entry point
``open_session.load_session``; knows nothing of requesters.
"""
