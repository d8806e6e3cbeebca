"""Data: sources of pairs, tokenizers, batches; all a function of the recipe and its files."""
