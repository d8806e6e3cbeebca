"""The Hugging Face hub: a place in a repository there. The one door to its client."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path

from composer.errors import RunError, one_line_error
from composer.hub.fetch import ANSWERS, Place
from composer.hub.pack_contents import REGULAR, Entry
from composer.hub.urls import HubModel, pinned


def hub_place(ref: HubModel, origin: str) -> Place:
    """A revision of a repository on the hub. Raises RunError."""
    from huggingface_hub import HfApi

    try:
        found = HfApi().model_info(ref.repository, revision=ref.revision or None, files_metadata=True, timeout=ANSWERS)
    except Exception as error:  # what goes wrong on the way here has many classes, and one answer
        raise unreachable(origin, error) from None
    entries = {each.rfilename: Entry(each.rfilename, REGULAR, each.size or 0) for each in found.siblings or []}
    commit = str(found.sha or ref.revision)
    return Place(origin, pinned(ref, commit), entries, partial(fetch, ref.repository, commit, origin))


def fetch(repository: str, commit: str, origin: str, name: str, target: Path) -> None:
    """Downloads one file of the commit that was looked at."""
    from huggingface_hub import hf_hub_download

    with tempfile.TemporaryDirectory(prefix=".hub-", dir=target.parent) as place:
        try:
            found = hf_hub_download(repository, name, revision=commit, local_dir=place)
        except Exception as error:  # as above
            raise unreachable(origin, error) from None
        shutil.move(found, target)


def unreachable(origin: str, error: Exception) -> RunError:
    """Why the hub did not give it."""
    fix = "look at the name, the revision and the network; what is private needs `hf auth login`"
    return RunError.of(f"the hub does not give it: {one_line_error(error)}", fix, origin)
