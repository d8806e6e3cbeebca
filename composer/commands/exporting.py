"""The command `export`: a model for those who do not have this project."""

from __future__ import annotations

import typer

commands = typer.Typer()
