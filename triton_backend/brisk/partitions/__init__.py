"""The planner of which parts of a model start on which hosts, so that its first answers come
soonest.

It is the planner of Flashpoint (San Juan 2023, chapter 4), extended by the network. It is pure
(profiles and links in, plans out) and uses only the standard library.
"""
