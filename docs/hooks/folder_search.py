"""Hook of mkdocs: the index of the search as a script, which a page in a folder can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority


@event_priority(-100)  # after the plugin that writes the index
def on_post_build(config: Any) -> None:
    """Write the index again, as the script that the theme asks for there."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
