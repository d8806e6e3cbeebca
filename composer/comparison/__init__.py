"""Differences of two recipes or runs: settings, stacks of blocks (matched as trees), costs and
scores.
"""
