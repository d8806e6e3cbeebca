"""Metrics, and evaluation of runs."""
