"""Metrics of translations and texts: BLEU, chrF, TER, error rates, perplexity. Imports no torch."""
