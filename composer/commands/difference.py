"""The command `diff`: what two recipes or runs have different."""

from __future__ import annotations

import typer

commands = typer.Typer()
