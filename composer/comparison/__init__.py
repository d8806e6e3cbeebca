"""Differences of two recipes or runs: settings, blocks, costs and scores."""
