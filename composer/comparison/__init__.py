"""Differences of two recipes or runs: settings, stacks of blocks (tree edit distance), costs and scores."""
