"""The parts of `benchmarks.gpu`, a file each."""
