"""Sweeps over the structure of a recipe: a space of recipes, trained, ranked and shown."""
