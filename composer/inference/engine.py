"""`engine: onnxruntime` or `torch`: what runs the models of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from composer.inference.run import Run
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.choices import Decoder, Engine
from composer.recipe.recipe import load
from composer.run_dir import RunDir, find_run


def decoding_models(runs: Sequence[Run], decoding: Decoder) -> list[EncoderDecoder]:
    """Return the models of runs on the engine of a decoding. Raises RunError and RecipeError."""
    if decoding.engine == "torch":
        return [run.model for run in runs]
    from composer.inference.onnx_model import on_onnxruntime  # it takes PyTorch's compiler

    return [on_onnxruntime(run, decoding) for run in runs]


def with_open_programs(run: Run) -> Run:
    """Return a run whose model is on its engine for all decodings. Raises as `decoding_models`."""
    if run.recipe.decoding.engine == "torch":
        return run
    (model,) = decoding_models([run], run.recipe.decoding)
    ((word, settings),) = run.recipe.canonical["decoding"].items()
    # programs that are open need no engine to make them
    decoding = {word: {**settings, "engine": "torch"}}
    canonical = {**run.recipe.canonical, "decoding": decoding}
    return replace(run, model=model, recipe=replace(run.recipe, canonical=canonical))


def engine_override(run: str | Path, overrides: Sequence[str], engine: Engine) -> str:
    """Return the override that lets a run decode on an engine. Raises RecipeError and RunError."""
    recipe = load(RunDir(find_run(run)).recipe, overrides)
    return f"decoding.{recipe.decoding.word}.engine={engine}"
