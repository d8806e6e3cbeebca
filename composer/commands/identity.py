"""The command that says what a recipe or a run is, in three numbers: `fingerprints`; and `upgrade`."""

from __future__ import annotations

import typer

commands = typer.Typer()
