"""Training: from a recipe to a run folder."""

EARLY_SIGNALS: list[int] = []
"""Signals received before a training handles them. Here, since the command line needs it before it
imports torch.
"""
