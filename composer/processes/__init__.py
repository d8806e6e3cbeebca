"""All calls of other programs: git, and Python itself. What they start takes nothing from a folder
that it runs in.
"""
