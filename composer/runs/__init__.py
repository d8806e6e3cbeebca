"""What a run folder says of its training."""
