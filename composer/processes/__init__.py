"""All calls of other programs: git, and Python itself.

They take nothing from the folder in which they run.
"""
