"""`push`: pack a finished run and upload the pack to where a reference says."""

from __future__ import annotations

import re
from os import PathLike
from typing import NamedTuple

from composer.atomic_io import os_errors_as_run_errors, sha256_of_file
from composer.errors import RunError
from composer.hub.model_card import eval_results
from composer.hub.pack import finished_run, packed_temporarily
from composer.hub.pack_format import MANIFEST
from composer.hub.remotes import HubReference, LocalReference, WandbReference, parse_reference
from composer.hub.shelf import LATEST, NAMING, VERSION, WORD
from composer.processes.git import COMMIT


class Pushed(NamedTuple):
    """Result of a push: a reference that `pull` takes, the pack's fingerprint, and a note."""

    ref: str
    sha256: str
    note: str


def push_run(run: str | PathLike[str], ref: str, name: str = "", license: str = "") -> Pushed:
    """Pack a finished run, and upload the pack. Raises RunError.

    name: `NAME[@ALIAS]` on the shelf `ref`. license: For a generated model card.
    """
    reference = parse_reference(ref)
    if name:
        if not isinstance(reference, LocalReference) or not re.fullmatch(f"{WORD}(@{WORD})?", name):
            raise RunError.of("only a folder takes a name, `NAME@ALIAS`", NAMING, f"{ref} {name}")
        reference = LocalReference(f"{ref}/{name}" if "@" in name else f"{ref}/{name}@{LATEST}")
    fixed = VERSION if isinstance(reference, WandbReference) else COMMIT
    if re.fullmatch(fixed, reference.revision):
        raise RunError.of("a version never changes", "name a branch or an alias", str(reference))
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
