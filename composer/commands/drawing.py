"""The command `draw`: an architecture as a picture."""

from __future__ import annotations

import typer

commands = typer.Typer()
