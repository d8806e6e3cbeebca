"""Models for those who do not have this project. Export as one plain PyTorch file: `script` is the place to start."""
