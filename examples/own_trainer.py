"""The model of a recipe in a training loop of your own, then in a Lightning Trainer of your own."""

from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.nn import functional

import composer
from composer.training.datamodule import RecipeDataModule
from composer.training.module import Seq2SeqModule
from composer.training.trainer import silence_lightning

recipe = composer.load(Path(__file__).with_name("recipe.yaml"))  # copy strings of letters

# 1. A plain loop: `composer` gives the batches and the model, everything else is yours.
torch.manual_seed(1)
loader = composer.data_loader(recipe)
model = composer.build(recipe, vocabularies=loader.tokenizers.sizes)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    loader.sampler.set_epoch(epoch)  # another order of the batches
    for batch in loader:
        logits = model(batch["sources"], batch["target_in"])  # (B, T, V)
        target = batch["target_out"]  # (B, T), 0 is padding
        loss = functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.2f}")
run = composer.Run.from_model(recipe, loader.tokenizers, model)
print(run.translate(["c a b"]), run.evaluate("val")["val/exact_match"])

# 2. A Lightning Trainer: the module has the loss, optimizer and schedule of the recipe.
silence_lightning()  # its tips and warnings, as the commands do
pl.seed_everything(1)
data = RecipeDataModule(recipe)
module = Seq2SeqModule.from_recipe(recipe, data.tokenizers)
trainer = pl.Trainer(
    max_epochs=3,
    accelerator="cpu",
    use_distributed_sampler=False,  # batches are drawn by length
    default_root_dir="runs/lightning",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, datamodule=data)
print(trainer.callback_metrics["val/loss"], composer.translate(module, ["c a b"]))
