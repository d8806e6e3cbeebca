"""Data: sources of pairs, tokenizers, batches; all of it a function of the recipe and of the files
it names.
"""
