"""Evaluation of runs: scores of a split, scores by length, hints from a learning curve."""
