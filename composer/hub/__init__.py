"""Sharing runs and recipes: packs with checksums, model cards, and pulling from folders, git, W&B
or the hub.
"""
