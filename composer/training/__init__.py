"""Training: from a recipe to a run folder."""

import os

# Threads that wait for work sleep instead of spinning: minutes are counted in the process's own time, and a neighbour
# on the same cores gets them. Read by the C library when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
