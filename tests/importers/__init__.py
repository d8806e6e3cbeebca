"""Tests of `import`: published models as runs of this project's blocks."""
