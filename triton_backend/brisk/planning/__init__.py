"""Plans for queries over several networks: which variant of each runs, within what time.

After GATI, sections 5.1 and 5.2. Standard library only; nobody here reads a clock.
"""
