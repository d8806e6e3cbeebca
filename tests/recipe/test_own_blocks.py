"""A class of a script or a notebook is a block of its process; a run knows its source, and who
lacks it is told.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import composer
from blocks.core.contract import Block, Context, Rate, Site, State
from blocks.core.functional import last_positions
from composer.checks import block_values
from composer.cli.main import main
from composer.errors import ComposerError, RecipeError, RunError
from composer.recipe import own_blocks, registry
from composer.recipe.section import BlockSpec
from composer.run_dir import RunDir
from composer.sweeps.points import list_points
from composer.sweeps.spec import read_sweep
from composer.testing import LawError
from tests.small_recipes import SMALL, loaded, refused

RECIPE = """recipe: 1
data: {generate: {copy: {symbols: 5, max_length: 5, train: 40, val: 5, test: 5}}}
model: {width: 8, encoder: [shift, {shift: {past: 0.2}}], decoder: [shift, cross_attention]}
training: {max_steps: 2}
trainer: {enable_progress_bar: false}
logging: {wandb: false}
"""


class Shift(Block):
    """Mixes each position with the one before it.

    Settings:
        past: The weight of the past at first.
    """

    def __init__(self, site: Site, *, past: Rate = 0.5) -> None:
        super().__init__()
        self.out = site.sequence("shift")
        self.mix = nn.Parameter(torch.full((self.out.width,), 1.0 - past))

    def start(self, x: Tensor, context: Context) -> State:
        return x.new_zeros(x.shape[0], 1, self.out.width)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        assert isinstance(state, Tensor)
        since = torch.cat([state, x], dim=1)
        return self.mix * x + (1.0 - self.mix) * since[:, :-1], last_positions(
            since, context.mask.sum(1), length=1
        )


class LooksAhead(Shift):
    """Reads the next position."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.mix * x.roll(-1, 1), state


class Fails(Shift):
    """Raises."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        raise ValueError("no luck")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for name in [*registry.OWN]:
        own_blocks._set_own(name, None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    composer.block(Shift)
    folder = tmp_path_factory.mktemp("own")
    return composer.train(loaded(folder, RECIPE), run=folder / "run").run_dir


def test_a_class_is_a_block_of_every_recipe(tmp_path: Path) -> None:
    (unknown,) = refused(tmp_path, SMALL.replace("norm", "shift"))
    assert unknown.message == "there is no block called `shift`"
    assert composer.block("shift")(Shift) is Shift
    recipe = loaded(tmp_path, RECIPE)
    assert composer.check(recipe) == []
    assert recipe.model.encoder[1] == composer.block.shift(0.2) == BlockSpec("shift", {"past": 0.2})
    assert "shift" in dir(composer.block)
    assert "shift" in [row.block for row in composer.plan(recipe).rows]
    assert "past" in composer.blocks("shift")["properties"]
    (fault,) = refused(tmp_path, RECIPE, ["model.encoder.1.shift.past=2"])
    assert fault.message == "`past` takes a number, 0 or more and below 1; `2` is too large"
    (fault,) = refused(tmp_path, RECIPE.replace("{past", "{pats"))
    assert (fault.line, fault.hint) == (3, "write `past`; allowed here: `past`, `as`")


def test_the_word_is_that_of_the_class() -> None:
    class TokenShift(Shift):
        """A class without methods of its own."""

    composer.block(TokenShift)
    assert list(registry.OWN) == ["token_shift"]
    with pytest.raises(RunError, match="cannot be read, and runs record its SHA-256"):
        composer.block(type("Nowhere", (Shift,), {"__module__": "nowhere"}))


def test_of_classes_with_one_name_each_has_its_source() -> None:
    def first() -> type[Block]:
        class Same(Shift):
            """One."""

        return Same

    def second() -> type[Block]:
        @composer.block("same")
        class Same(Shift):
            """Another."""

            forward = LooksAhead.forward

        return Same

    hashes = {}
    for make in (first, second, first):
        composer.block("same")(make())
        hashes[make] = {*hashes.get(make, ()), registry.OWN["same"].sha256}
    assert [len(of) for of in hashes.values()] == [1, 1]
    assert hashes[first] != hashes[second]


def test_a_cell_that_runs_again_replaces_its_block(tmp_path: Path) -> None:
    composer.block("shift")(Shift)
    composer.block("shift")(LooksAhead)
    assert registry.block_class("shift") is LooksAhead
    assert registry.OWN["shift"].origin == f"{__file__}:LooksAhead"
    with pytest.raises(LawError, match="invariant `causality`: LooksAhead"):
        composer.check_block("shift", compiles=False)


def test_a_block_is_proved_by_its_word() -> None:
    composer.block(Shift)
    composer.check_block("shift", {}, {"past": 0.2}, compiles=False)


def test_a_word_that_is_taken_is_refused_at_the_class() -> None:
    for word, message in {
        "norm": "there is a block called `norm` already",
        "My-Block": "`My-Block` is no word for a block",
        "encoder": "a block cannot be called 'encoder': it is a key of `model`",
    }.items():
        with pytest.raises(RunError) as raised:
            composer.block(word)(Shift)
        (fault,) = raised.value.faults
        assert message in fault.message
        assert fault.file == f"{__file__}:Shift"
    assert registry.OWN == {}
    with pytest.raises(TypeError, match="a block is a class that derives from"):
        composer.block("mine")(nn.Linear)  # type: ignore[type-var]


def test_settings_that_cannot_be_read_leave_the_block_before() -> None:
    class Complex(Shift):
        def __init__(self, site: Site, *, past: complex = 1j) -> None: ...

    composer.block("shift")(Shift)
    with pytest.raises(RunError, match="a setting cannot be of the type <class 'complex'>"):
        composer.block("shift")(Complex)
    assert registry.block_class("shift") is Shift


def test_a_setting_by_position_is_refused_at_the_class() -> None:
    class Positional(Shift):
        def __init__(self, site: Site, past: Rate = 0.5) -> None:
            super().__init__(site, past=past)

    with pytest.raises(
        RunError, match=r"`past` is not keyword-only, so it is no setting; write `\*,` before it"
    ):
        composer.block("shift")(Positional)
    with pytest.raises(LawError, match=r"`settings`: Positional.* `past` is not keyword-only"):
        composer.check_block(Positional, compiles=False)


def test_an_error_of_a_block_has_its_line(tmp_path: Path) -> None:
    composer.block("fails")(Fails)
    (fault,) = composer.check(loaded(tmp_path, SMALL.replace("norm", "fails")))
    line = 1 + Path(__file__).read_text(encoding="utf-8").splitlines().index(
        '        raise ValueError("no luck")'
    )
    assert fault.message.endswith(f"arrives: ValueError: no luck (test_own_blocks.py, line {line})")


class Ends(Shift):
    """Ends the process where it is built, or where it runs."""

    def __init__(self, site: Site, *, early: bool = False) -> None:
        super().__init__(site)
        if early:
            sys.exit(3)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        sys.exit(4)


class Drops(Shift):
    """Leaves a position less than it says."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.mix * x[:, 1:], state


class Blind(Shift):
    """Takes the logarithm of what may be negative."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return self.mix * x.log(), state


def test_a_block_that_ends_the_process_is_a_fault_of_it(tmp_path: Path) -> None:
    composer.block(Shift)
    composer.block("ends")(Ends)
    for setting, status in (("{early: true}", 3), ("{}", 4)):
        (fault,) = composer.check(
            loaded(tmp_path, RECIPE.replace("decoder: [shift", f"decoder: [{{ends: {setting}}}"))
        )
        assert (fault.code, fault.path) == ("block", "model.decoder[0].ends")
        assert f"SystemExit: {status} (test_own_blocks.py" in fault.message


def test_a_block_that_drops_a_position_is_named(tmp_path: Path) -> None:
    composer.block("drops")(Drops)
    for place in ("encoder: [shift", "decoder: [shift"):
        composer.block(Shift)
        (fault,) = composer.check(
            loaded(tmp_path, RECIPE.replace(place, place.replace("shift", "drops")))
        )
        assert fault.path == f"model.{place.partition(':')[0]}[0]"
        assert "32 positions, and leaves (1, 31)" in fault.message


def test_a_block_that_gives_nan_is_named(tmp_path: Path) -> None:
    composer.block(Shift)
    composer.block("blind")(Blind)
    (fault,) = composer.check(
        loaded(tmp_path, RECIPE.replace("encoder: [shift", "encoder: [blind"))
    )
    assert (fault.code, fault.path) == ("block", "model.encoder[0]")
    assert "NaN" in fault.message


def test_a_block_that_reads_the_future_stands_in_no_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composer.block(Shift)
    composer.block("ahead")(LooksAhead)
    assert (
        composer.check(loaded(tmp_path, RECIPE.replace("encoder: [shift", "encoder: [ahead"))) == []
    )
    for wrapper in ("residual", "recurrent"):
        text = RECIPE.replace("decoder: [shift", f"decoder: [shift, {{{wrapper}: [norm, ahead]}}")
        (fault,) = composer.check(loaded(tmp_path, text))
        assert (fault.code, fault.path) == ("causality", f"model.decoder[1].{wrapper}[1]")
    monkeypatch.setattr(block_values, "MOST_PARAMETERS", 0)
    assert composer.check(loaded(tmp_path, text)) == []
    # a training looks at its own model
    with pytest.raises(RecipeError, match="may not read the future"):
        composer.train(loaded(tmp_path, text), run=tmp_path / "run")


def test_a_look_at_numbers_moves_no_random_numbers(tmp_path: Path) -> None:
    composer.block(Shift)
    torch.manual_seed(1)
    composer.plan(loaded(tmp_path, RECIPE))
    assert torch.initial_seed() == 1
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))


# ------------------------------------------------------------------------------------------- runs


def test_a_run_records_the_source_and_needs_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composer.block(Shift)
    recorded = RunDir(trained).read().plug_ins["shift"]
    assert recorded["from"] == f"{__file__}:Shift"
    assert recorded["sha256"] == registry.OWN["shift"].sha256
    lines = composer.open_run(trained).translate(["a b"])
    own_blocks._set_own("shift", None)
    for use in (composer.open_run, composer.fingerprints, composer.evaluate):
        with pytest.raises(RunError) as raised:
            use(trained)
        (fault,) = raised.value.faults
        assert all(text in fault.message for text in ("`shift`", __file__, recorded["sha256"]))
    composer.block("shift")(LooksAhead)
    with pytest.raises(RunError, match="the block `shift` has another source"):
        composer.open_run(trained)
    with pytest.raises(RunError, match="the block `shift` has another source"):
        composer.train(composer.load(trained / "recipe.yaml"), run=trained, resume=True)
    monkeypatch.setenv("SEQCOMPOSER_UNVERIFIED", "1")
    assert composer.open_run(trained).translate(["a b"]) != lines


def test_a_command_says_what_it_lacks(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_blocks._set_own("shift", None)  # as in another process
    with pytest.raises(SystemExit) as ended:
        main(["translate", str(trained)])
    assert ended.value.code == 2
    assert "nothing here defines the block `shift` of this run" in capsys.readouterr().err


def test_other_processes_refuse_it_and_say_how_to_package_it(tmp_path: Path) -> None:
    composer.block(Shift)
    loaded(tmp_path, RECIPE, name="base.yaml")
    axes = "axes: {encoder: {replace: model.encoder..shift, with: {same: shift, rnn: rnn}}}\n"
    (tmp_path / "tried.yaml").write_text(f"sweep: 1\nbase: base.yaml\n{axes}", encoding="utf-8")
    same, other = list_points(read_sweep(tmp_path / "tried.yaml"))
    assert same.faults[0].hint.startswith("make it a package with the entry point")
    assert 'shift = "my_package.shift:Shift"' in same.faults[0].hint
    assert other.faults[0].path == "model.decoder[0]"
    with pytest.raises(RecipeError, match="a process of its own"):
        composer.sweep(tmp_path / "base.yaml", seeds="2", run=tmp_path / "seeds")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_pack_names_the_block_that_is_missing(trained: Path, tmp_path: Path) -> None:
    composer.block(Shift)
    packed = composer.pack(trained, tmp_path / "own.tar")
    own_blocks._set_own("shift", None)
    with pytest.raises(ComposerError, match=r"the block `shift` from test_own_blocks.py:Shift"):
        composer.pull(packed, tmp_path / "pulled")
    composer.block(Shift)
    assert composer.open_run(composer.pull(packed, tmp_path / "pulled")).translate(["a"])
