"""A sweep: two encoders at two learning rates each, then their leaderboard.

On the command line: `seqcomposer sweep examples/sweep.yaml`, `seqcomposer leaderboard
runs/encoders`. The same command continues a sweep that was stopped.
"""

from pathlib import Path

import composer

SWEEP = Path(__file__).with_name("sweep.yaml")

# every point is checked and costed before the first one trains
for point in composer.sweep_points(SWEEP):
    print(point)

board = composer.sweep(SWEEP, workers=2)
print(board.text())

# a trial is a run; `#1` is the first of the ranking
best = composer.open_run("runs/encoders#1")
print(best.translate(["a b c d"]))
