"""One page of a run, that opens anywhere, and the pictures that are logged."""
