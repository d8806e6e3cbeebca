"""Executors start the trainings of a sweep: on this machine, on a Ray cluster, or by Slurm."""
