"""The least that Lightning needs for a first step: a Transformer of the quick start's size, on
random ids.
"""

from __future__ import annotations

import os
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.bare import PAD, Transformer

VOCABULARY, ROWS, LENGTH = 400, 60, 25


class Module(pl.LightningModule):
    """Cross-entropy and Adam with a schedule, and the end of the process after one step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer(VOCABULARY, width=128, heads=4, hidden=512, layers=2)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        source, target = batch  # (B, S), (B, T)
        logits = self.model(source, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_train_batch_end(self, *_: Any) -> None:
        os._exit(0)


def main() -> None:
    pl.seed_everything(1, verbose=False)
    ids = torch.randint(3, VOCABULARY, (20 * ROWS, LENGTH))
    loader = DataLoader(TensorDataset(ids, ids), batch_size=ROWS, shuffle=True)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings: dict[str, Any] = {
        **dict.fromkeys(off, False),
        "num_sanity_val_steps": 0,
        "gradient_clip_val": 1.0,
    }
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=-1, **settings)
    trainer.fit(Module(), loader)


if __name__ == "__main__":
    main()
