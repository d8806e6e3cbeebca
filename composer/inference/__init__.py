"""Decoding with trained models: open a run, translate, search."""
