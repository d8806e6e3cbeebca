"""From a resolved recipe to an encoder-decoder: build, plan, save weights."""
