"""Alignments of a run: attention maps, film strips and memory use of single sentences."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Record
from composer.data.pairs import TARGET
from composer.formatting import count_noun
from composer.inference.decode import (
    SourceIds,
    decode_all,
    evaluation_mode,
    make_rows,
    source_tensor,
)
from composer.inference.decoders.search import Options
from composer.inference.lines import (
    LINES,
    GivenLine,
    check_lines,
    encode_lines,
    encode_targets,
    oom_as_run_failed,
)
from composer.inference.run import Run
from composer.model.encoder_decoder import StepInputs
from composer.model.features import feature_settings
from composer.model.special_tokens import BOS, EOS, SPECIAL_TOKENS
from composer.viz import heat_maps
from composer.viz.alignment_figure import alignment_svg
from composer.viz.figure_files import save_figure
from composer.viz.media import Medium, Strip, cells_by_memory, medium_of_source, picture_strips
from composer.viz.memory import Memory, memories
from composer.viz.page import render, write_document
from composer.viz.records import (
    Attention,
    Film,
    SentenceRecords,
    attentions,
    films,
    source_labels,
    token_labels,
)

MAX_TOKENS = 100
"""Tokens of a source, or of an output, beyond which a picture cannot be read."""
MAX_POSITIONS = 3000
"""Positions of an image or a sound beyond which it has no pictures."""


@dataclass(frozen=True)
class Alignment:
    """One sentence: source texts, output and pictures; `note` says why some are missing or cut.

    `media` are the images and sounds among the sources. A notebook shows its pictures.
    """

    texts: Mapping[str, str]
    output: str
    attentions: Sequence[Attention]
    note: str = ""
    films: Sequence[Film] = ()
    memories: Sequence[Memory] = ()
    media: Mapping[str, Medium] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The source texts; of an image or a sound the end of its file's path."""
        labels = {side: medium.label for side, medium in self.media.items()}
        return [labels.get(side, text) for side, text in self.texts.items()]

    @property
    def has_pictures(self) -> bool:
        """True if any block has left an attention map, a film strip or a memory."""
        return bool(self.attentions or self.films or self.memories)

    def svg(self) -> str:
        """Return the pictures as an SVG file: a row for each block, a heat map for each head."""
        return alignment_svg(" → ".join([*self.names, self.output]), pictures(self, 1))

    def save(self, path: str | Path) -> Path:
        """Write the pictures as .svg, .png, .pdf, or .html, a page.

        Raises RunError if the suffix is another one, if the file cannot be written, or is there and
        is no such picture, and for .png and .pdf without the package vl-convert-python.
        """
        file = Path(path)
        if file.suffix.lower() == ".html":
            return write_document(file, "page", alignment_page(self))
        return save_figure(file, self.svg(), "picture of alignments", is_alignment)

    def _repr_html_(self) -> str:
        # a frame keeps the page's style away from the notebook
        height = min(640, 120 + sum(90 + 18 * len(attention.rows) for attention in self.attentions))
        return render("frame.html", page=alignment_page(self), height=height, title=self.output)


SVG_HEAD = (
    b'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    b' class="alignment"'
)
"""How an SVG of alignments begins."""


def is_alignment(file: Path) -> bool:
    """True if a file is an SVG of alignments."""
    return file.read_bytes().startswith(SVG_HEAD)


def alignments(
    run: Run,
    lines: Sequence[GivenLine],
    origin: str = LINES,
    targets: Sequence[str] | None = None,
    max_tokens: int = MAX_TOKENS,
) -> list[Alignment]:
    """Return the attention weights of each line, decoded by a run or with the target given for it.

    A model without encoders reads the line instead. A line for several encoders is as
    `Run.translate` takes it. Raises DataError if it has another number of texts, where `origin` is
    the file that the error names, and RunFailed if a device runs out of memory.
    """
    read, _ = check_lines(run.recipe, lines, origin=origin)
    texts, ids = encode_lines(run.recipe, run.tokenizers, dict(enumerate(read, start=1)), origin)
    with oom_as_run_failed(chain.from_iterable(ids.values())):
        outputs: Sequence[Any]
        if ids and targets is None:
            options = Options(to_texts=partial(run.tokenizers.decode, TARGET))
            begun = [run.tokenizers.beginning(TARGET)] * len(read)
            rows = make_rows(ids, begun)
            decoded = decode_all([run.model], rows, run.recipe.decoding, options)
            outputs = [best.ids for best, *_ in decoded]
        else:
            target = encode_targets(run.recipe, run.tokenizers, read, targets).target
            outputs = [target[row] for row in range(len(target))]
        return [
            alignment(run, _row(texts, at), _row(ids, at), output, max_tokens)
            for at, output in enumerate(outputs)
        ]


def _row(columns: Mapping[str, Sequence[object]], at: int) -> dict[str, Any]:
    return {side: rows[at] for side, rows in columns.items()}


def alignment(
    run: Run,
    texts: Mapping[str, str],
    ids: Mapping[str, SourceIds],
    output: Sequence[int],
    max_tokens: int = MAX_TOKENS,
) -> Alignment:
    """Return the attention weights of one sentence with a given output, with teacher forcing."""
    text = run.tokenizers.decode(TARGET, [output])[0]
    # a grid's size depends on the output's length, so a part of the output would have other
    # pictures
    lengths = {side: len(row) for side, row in ids.items()} | {
        TARGET: len(output) if run.model.max_target_ratio else 0
    }
    for side, length in lengths.items():
        settings = feature_settings(run.recipe.data, side)
        limit, what = (
            (max(MAX_POSITIONS, max_tokens), "positions") if settings else (max_tokens, "tokens")
        )
        if length > limit:
            return Alignment(
                texts, text, [], f"its {length} {what} are more than the {limit} of a picture"
            )
    note = f"the first {max_tokens} of {len(output)} tokens" if len(output) > max_tokens else ""
    output = output[:max_tokens]
    tokens = {side: source_labels(run.tokenizers, side, row) for side, row in ids.items()}
    first = SPECIAL_TOKENS[EOS if run.model.begins_after_end else BOS]
    tokens[TARGET] = [first, *token_labels(run.tokenizers, TARGET, output)]
    records: dict[Record, list[Tensor]] = {}
    source = {side: source_tensor([row], run.model.device) for side, row in ids.items()}
    with evaluation_mode([run.model]):
        # not the model itself: a compiled one would be compiled again
        run.model.forward(
            source,
            torch.tensor([[BOS, *output]], device=run.model.device),
            StepInputs(records=records),
        )
    columns = {side: feature_settings(run.recipe.data, side) for side in ids}
    read = {
        side: medium_of_source(texts[side], column, ids[side]) for side, column in columns.items()
    }
    media, readers = (
        {side: one for side, one in read.items() if one is not None},
        run.model.readers(),
    )
    cells = [cells_by_memory(side, readers[side], one.size) for side, one in media.items()]
    sentence = SentenceRecords(run.recipe, records, tokens, dict(ChainMap(*cells)))
    maps = list(attentions(sentence))
    if any(columns.values()):  # of so many frames only those that follow the time can be read
        maps = [attention for attention in maps if is_readable(attention, max_tokens)]
    return Alignment(texts, text, maps, note, list(films(sentence)), memories(sentence), media)


def is_readable(attention: Attention, max_tokens: int) -> bool:
    """True if the columns of a map follow the time of a sound, or are few."""
    return attention.cells is not None or max(attention.weights.shape[1:]) <= max_tokens


SIDE_TITLES = {"target": "the decoder", "source": "the encoder"}
SHOWN_FIRST = "cross_attention"
"""The block whose maps come first and are open; the others are folded."""


def alignment_page(alignment: Alignment) -> str:
    """Return a self-contained HTML page with the pictures of one sentence."""
    return render(
        "alignment.html", title="alignment", alignment=alignment, pictures=pictures(alignment, 1)
    )


BlockMaps = list[tuple[str, list[heat_maps.HeatMap]]]


def pictures(alignment: Alignment, number: int) -> dict[str, object]:
    """Return all pictures of a sentence, for the templates that draw them.

    A group has the maps of all blocks of one type in the encoder or in the decoder: its title,
    whether it is open, and the maps by block. A memory has a line of maps for each line of panels.
    `media` are the images and sounds, by ids of the page; `strips` has for each block that reads an
    image its title, the image's id, and what is laid over it. number: That of the sentence on the
    page, which makes ids unique.
    """
    axes: heat_maps.AxesByLabels = {}
    memory_axes: heat_maps.AxesByLabels = {}
    ids = {side: f"medium-{number}-{side}" for side in alignment.media}
    blocks: dict[tuple[str, str], BlockMaps] = {}
    strips: list[tuple[str, str, list[Strip]]] = []
    for attention in alignment.attentions:
        cells, prefix = attention.cells, f"axes-{number}"
        if cells is None:
            maps = heat_maps.attention_maps(
                attention, heat_maps.shared_axes(axes, prefix, attention)
            )
        elif (one := alignment.media[cells.side]).hop:
            maps = heat_maps.sound_maps(attention, cells, one, ids[cells.side], axes, prefix)
        else:
            laid_over = picture_strips(attention.rows, attention.weights, one, cells)
            strips.append((attention.block, ids[cells.side], laid_over))
            continue
        blocks.setdefault((attention.word, attention.side), []).append((attention.block, maps))
    groups: list[tuple[str, bool, BlockMaps]] = []
    for (word, side), members in sorted(
        blocks.items(), key=lambda group: group[0][0] != SHOWN_FIRST
    ):
        count = sum(len(maps) for _, maps in members)
        title = (
            f"{word} of {SIDE_TITLES.get(side, f'the encoder {side}')}: {count_noun(count, 'map')}"
        )
        groups.append((title, not groups or word == SHOWN_FIRST, members))
    lines = []
    for memory in alignment.memories:
        panels = memory.panels
        lines.append([heat_maps.panel_maps(it, memory_axes, f"cells-{number}") for it in panels])
    return {
        "media": {ids[side]: one for side, one in alignment.media.items()},
        "strips": strips,
        "axes": [*axes.values()],
        "groups": groups,
        "most_heads": max(
            (len(maps) for _, maps in chain.from_iterable(blocks.values())), default=0
        ),
        "films": [*map(heat_maps.film_strip, alignment.films)],
        "memory_axes": [*memory_axes.values()],
        "memories": list(zip(alignment.memories, lines, strict=True)),
    }
