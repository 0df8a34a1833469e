"""The planner of which parts of a model start on which hosts, so that its first answers come
soonest.

The planner of Flashpoint (San Juan 2023, chapter 4) with the network in it. Standard library only,
pure: profiles and links in, plans out.
"""
