"""What the blocks are made of. `contract` is the place to start."""
