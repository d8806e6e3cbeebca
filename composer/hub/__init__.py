"""A run that is handed on: packed with its hashes, and pulled from a folder, git, Weights & Biases or the hub."""
