"""``brisk doctor``'s checks: what costs a deployment time or reliability, and what to change.

One file each. A check reads; it changes nothing and starts nothing that lasts.
"""
