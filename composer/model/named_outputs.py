"""Named outputs of a model's last forward pass, by hooks on its encoders and its decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from blocks.core.contract import Output
from composer.model.encoder_decoder import EncoderDecoder


class NamedOutputs:
    """The outputs that a recipe names, as the last forward pass computed them.

    Those of the decoder are called as `as` says, those of an encoder `encoder.NAME`.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        self.outputs: dict[str, Output] = {}
        self.handles: list[RemovableHandle] = []
        for encoder in model.readers().values():
            self.handles.append(encoder.register_forward_hook(self.keep_memories))
        self.handles.append(model.decoder.register_forward_hook(self.keep_named))

    def keep_memories(self, module: nn.Module, inputs: Any, memories: Mapping[str, Output]) -> None:
        """Keep what an encoder returns."""
        self.outputs.update(memories)

    def keep_named(self, module: nn.Module, inputs: Any, result: tuple[Any, ...]) -> None:
        """Keep the names that the decoder returns beside its output and its state."""
        self.outputs.update(result[2])


@contextmanager
def keep_named_outputs(model: EncoderDecoder) -> Iterator[dict[str, Output]]:
    """Fill a mapping with the named outputs of the forward passes in this block."""
    recorder = NamedOutputs(model)
    try:
        yield recorder.outputs
    finally:
        for handle in recorder.handles:
            handle.remove()
