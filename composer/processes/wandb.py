"""Weights & Biases in this process: it takes no settings from the current folder."""

from __future__ import annotations

import os


def load_wandb_settings() -> None:
    """Let W&B read its settings now, and leave out `wandb/settings` of the current folder.

    A folder with somebody else's recipe may have that file, too. With a `base_url` of theirs, W&B
    would send the user's key there. The user's own settings and the environment's count.
    """
    from wandb import Settings
    from wandb.sdk import wandb_setup

    # which file of the current folder it is, by W&B's settings themselves
    name = "settings_workspace"
    before = vars(Settings)[name]
    setattr(Settings, name, property(lambda _: os.devnull))
    try:
        _ = wandb_setup.singleton().settings  # read the first time that they are asked for
    finally:
        setattr(Settings, name, before)
