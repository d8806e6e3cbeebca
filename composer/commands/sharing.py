"""The commands `pack` and `pull`: a run is handed on."""

from __future__ import annotations

import typer

commands = typer.Typer()
