"""`push`: pack a finished run and upload the pack to where a reference says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from os import PathLike

from composer.atomic_io import os_errors_as_run_errors, sha256_of_file
from composer.errors import RunError
from composer.hub.model_card import eval_results
from composer.hub.pack import finished_run, packed_temporarily
from composer.hub.pack_format import MANIFEST
from composer.hub.remotes import HubReference, LocalReference, parse_reference
from composer.hub.shelf import LATEST, WORD


@dataclass(frozen=True)
class Pushed:
    """Result of a push: a reference that `pull` takes, the pack's fingerprint, and a note."""

    ref: str
    sha256: str
    note: str = ""


def push(run: str | PathLike[str], ref: str, name: str | None = None, license: str = "") -> str:
    """Pack a finished run, and upload the pack; return a reference to it that `pull` takes.

    Args:
        run: A run folder, or an opened run.
        ref: `hub:OWNER/NAME[@BRANCH]`, `wandb:[ENTITY/]PROJECT/NAME[:ALIAS]`, `git+URL[@BRANCH]`, a
            new folder, or `FOLDER/NAME[@ALIAS]` of a shelf.
        name: `NAME[@ALIAS]` on the shelf `ref`.
        license: License for a generated model card, by its identifier on the hub, such as `mit`.

    Raises:
        RunError: With everything there as it was.
    """
    return push_run(run, ref, name, license).ref


def push_run(
    run: str | PathLike[str], ref: str, name: str | None = None, license: str = ""
) -> Pushed:
    """Like `push`, but return the whole result."""
    reference = parse_reference(ref)
    if name is not None:
        if not isinstance(reference, LocalReference):
            fix = "write the name in the reference"
            raise RunError.of("only a folder takes a name: it is a shelf then", fix, ref)
        if not re.fullmatch(f"{WORD}(@{WORD})?", name):
            raise RunError.of("this is not `NAME@ALIAS`", "write words", name)
        alias = "" if "@" in name else f"@{LATEST}"
        reference = LocalReference(f"{ref}/{name}{alias}")
    folder, recipe = finished_run(run)
    with (
        os_errors_as_run_errors(str(reference)),
        packed_temporarily(folder, recipe, license) as pack,
    ):
        results = eval_results(recipe, folder.read())
        if results and isinstance(reference, HubReference):
            (pack / ".eval_results").mkdir()
            (pack / ".eval_results" / "seqcomposer.yaml").write_text(results, encoding="utf-8")
        uploaded = reference.upload(pack)
        return Pushed(uploaded.reference, sha256_of_file(pack / MANIFEST), uploaded.note)
