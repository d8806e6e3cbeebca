"""Share runs and recipes: packs with checksums, model cards, pull from git, W&B or the hub."""
