"""Other programs, and this process among them: git, Python, W&B, parents, signals, streams.

They take nothing from the folder in which they run.
"""
