"""Models that read images and sounds keep the laws of models; their columns have the settings of
their kind.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from composer.errors import RecipeError
from composer.model.builder import build
from composer.model.encoder_decoder import source_mask
from composer.recipe.recipe import load_text
from composer.testing import check_model

IMAGE = {"column": "image", "kind": "image", "size": [6, 5]}
SOUND = {"column": "sound", "kind": "audio", "features": {"log_mel": {"bands": 4}}}
MODEL = {
    "width": 6,
    "encoders": {
        "image": [{"conv2d": [3, 3]}, "sum_columns"],
        "sound": ["linear", {"rnn": {"cell": "gru", "bidirectional": True}}],
        "text": [{"rnn": {"cell": "gru"}}],
    },
    "decoder": [
        {"rnn": {"cell": "gru"}},
        *(
            {"residual": [{"cross_attention": {"from": name}}]}
            for name in ("image", "sound", "text")
        ),
    ],
}
SIZES = {"text": 7, "target": 8}


def recipe(**columns: Any) -> str:
    table = {
        "train": "train.tsv",
        "target": "caption",
        "image": IMAGE,
        "sound": SOUND,
        "text": "words",
    } | columns
    return json.dumps({"recipe": 1, "data": {"table": table}, "model": MODEL})


def test_a_model_of_image_sound_and_text_keeps_the_laws() -> None:
    torch.manual_seed(0)
    check_model(build(load_text(recipe()), SIZES))


def test_a_model_reads_only_what_is_real() -> None:
    model = build(load_text(recipe()), SIZES).eval()
    image, sound = torch.rand(1, 4, 5, 1), torch.rand(1, 3, 4)
    larger = torch.nn.functional.pad(image, (0, 0, 0, 0, 0, 2), value=torch.nan)
    longer = torch.nn.functional.pad(sound, (0, 0, 0, 3), value=torch.nan)
    text, target = torch.tensor([[5, 2]]), torch.tensor([[1, 6, 7]])
    logits = model({"image": image, "sound": sound, "text": text}, target)
    assert source_mask(larger).sum() == 20
    assert torch.allclose(
        model({"image": larger, "sound": longer, "text": text}, target), logits, atol=1e-6
    )


@pytest.mark.parametrize(
    ("columns", "path", "message"),
    [
        ({"image": {"column": "i", "kind": "image"}}, "data.table.image", "needs `size`"),
        ({"image": {**IMAGE, "rate": 8000}}, "data.table.image.rate", "is a setting of `audio`"),
        ({"sound": {**SOUND, "size": [3, 3]}}, "data.table.sound.size", "is a setting of `image`"),
        (
            {"text": {"column": "w", "channels": 1}},
            "data.table.text.channels",
            "this column is `text`",
        ),
        ({"sound": {"column": "v", "kind": "vectors"}}, "data.table.sound", "needs `width`"),
        ({"sound": {"column": "v", "kind": "video"}}, "data.table.sound.kind", "`video`"),
        ({"picture": IMAGE}, "data.table.picture", "no key `picture`"),
        ({"image": {**IMAGE, "size": [0, 3]}}, "data.table.image.size[0]", "1 or more"),
    ],
)
def test_columns_have_the_settings_of_their_kind(
    columns: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(RecipeError) as refusal:
        load_text(recipe(**columns))
    faults = {fault.path: fault for fault in refusal.value.faults}
    assert message in faults[path].message
    assert faults[path].hint
    assert faults[path].line


@pytest.mark.parametrize("joint", [False, True])
def test_an_image_cannot_share_its_embedding(joint: bool) -> None:
    text = json.loads(recipe())
    text["data"]["tokenizer"] = {"char": {"joint": joint}}
    text["model"]["output"] = {"tie": ["target", "image"]}
    with pytest.raises(RecipeError) as refusal:
        load_text(json.dumps(text))
    (fault,) = refusal.value.faults
    assert (fault.path, fault.code) == ("model.output.tie[1]", "tie")
    assert fault.message == "`image` reads images and has no embedding"
    assert fault.hint == "remove it from `tie`"


def test_an_image_has_no_room_for_an_answer() -> None:
    text = json.loads(recipe())
    text["model"]["encoders"]["image"] = ["sum_columns", "grid", "cgru", "select_column"]
    with pytest.raises(RecipeError, match="makes room for an answer after words"):
        load_text(json.dumps(text)).plan()
