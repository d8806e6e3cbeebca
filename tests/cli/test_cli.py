"""The command line: exit statuses, what goes to stdout and to stderr, and how little is imported
for an answer.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

import composer
from composer.cli import main
from composer.recipe import schema_generator

COMMANDS = sorted(get_command(main.app).commands)  # type: ignore[attr-defined]

DATA = "{copy: {max_length: 6, train: 50, val: 4, test: 4}}"
RECIPE = f"""\
recipe: 1
data:
  generate: {DATA}
  tokenizer: word
model:
  width: 8
  encoder: [{{rnn: {{cell: gru}}}}]
  decoder:
    - rnn: {{cell: gru}}
    - cross_attention: {{heads: 2}}
"""


class Answer(NamedTuple):
    status: int
    out: str
    err: str


Runner = Callable[..., Answer]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runner:
    """Runs a command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def running(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as left:
            main.main(arguments)
        out, err = capsys.readouterr()
        status = left.value.code
        return Answer(status if isinstance(status, int) else 0, out, err)

    return running


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


@pytest.mark.parametrize(
    ("words", "message", "command"),
    [
        (["train"], "missing argument 'RECIPE|RUN'", "seqcomposer train --help"),
        (["report", "--foo", "x"], "no such option: --foo", "seqcomposer report --help"),
        (["--foo"], "no such option: --foo", "seqcomposer --help"),
        (["tran"], "no such command 'tran'", "seqcomposer --help"),
        (["diff", "a"], "invalid value: name two recipes", "seqcomposer diff --help"),
        (["translate", "--input"], "option '--input' requires", "seqcomposer COMMAND --help"),
    ],
)
def test_an_error_of_usage_has_a_fix(
    run: Runner, words: list[str], message: str, command: str
) -> None:
    answer = run(*words)
    assert (answer.status, answer.out) == (2, "")
    assert f"error[usage]: {message}" in answer.err
    assert f"\n   fix: `{command}` lists " in answer.err


# ------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command: str, run: Runner) -> None:
    answer = run(command, "--help")
    assert answer.status == 0
    assert (
        f"Examples:\n    seqcomposer {command}" in answer.out
        or f"| seqcomposer {command}" in answer.out
    )


def test_help_names_every_command(run: Runner) -> None:
    answer = run("--help")
    assert answer.status == 0
    assert all(
        re.search(rf"^  {command} +[A-Z].*\.$", answer.out, re.MULTILINE) for command in COMMANDS
    ), answer.out


@pytest.mark.parametrize(
    "arguments", [("chekc",), ("check",), ("check", "--jsno", "a.yaml"), ("translate", "a=b")]
)
def test_a_misspelt_command_or_option_is_refused(arguments: tuple[str, ...], run: Runner) -> None:
    answer = run(*arguments)
    assert answer.status == 2
    assert "Traceback" not in answer.err


# ------------------------------------------------------------------------------------------- check


def test_check_accepts_a_valid_recipe(run: Runner) -> None:
    answer = run("check", write("good.yaml", RECIPE))
    assert answer == (0, answer.out, "")
    assert answer.out.startswith("good.yaml: no errors")


def test_check_reports_a_typo_in_the_fixed_form(run: Runner) -> None:
    answer = run("check", write("bad.yaml", RECIPE.replace("heads", "heds")))
    assert (answer.status, answer.out) == (2, "")
    lines = answer.err.splitlines()
    assert re.fullmatch(r"bad\.yaml:10:25: error\[[a-z-]+\]: .*`heds`.*`heads`.*", lines[0])
    assert lines[1].startswith("   at model.decoder[1].cross_attention")
    assert lines[2] == "   10 |     - cross_attention: {heds: 2}"
    assert lines[3] == "      |                         ^^^^"
    assert lines[4].startswith("   fix: ")
    assert lines[-1] == "1 error"


def test_check_reports_the_faults_of_all_recipes(run: Runner) -> None:
    one = write("one.yaml", RECIPE.replace("heads", "heds"))
    two = write("two.yaml", RECIPE.replace("width: 8", "width: wide").replace("gru", "gur"))
    answer = run("check", one, write("good.yaml", RECIPE), two)
    assert answer.status == 2
    assert {line.split(":")[0] for line in answer.err.splitlines() if "error[" in line} == {
        one,
        two,
    }
    assert answer.err.endswith("4 errors\n")


def test_check_reports_faults_of_model_and_files_together(run: Runner) -> None:
    files = "parallel: {train: {source: no.en, target: no.de}}"
    text = RECIPE.replace(f"generate: {DATA}", files).replace("heads: 2", "heads: 3")
    answer = run("check", write("bad.yaml", text))
    assert answer.status == 2
    assert [int(line.split(":")[1]) for line in answer.err.splitlines() if "error[" in line] == [
        3,
        3,
        10,
    ]


def test_check_prints_faults_as_json(run: Runner) -> None:
    assert run("check", "--json", write("good.yaml", RECIPE)) == (0, "[]\n", "")
    answer = run("check", "--json", write("bad.yaml", RECIPE.replace("heads", "heds")), "good.yaml")
    (fault,) = json.loads(answer.out)
    assert (answer.status, answer.err) == (2, "")
    assert list(fault) == ["file", "line", "column", "code", "path", "message", "hint", "edit"]
    assert (fault["file"], fault["line"], fault["column"]) == ("bad.yaml", 10, 25)
    edit = {
        "file": "bad.yaml",
        "path": fault["path"],
        "start": [10, 25],
        "end": [10, 29],
        "replacement": "heads",
    }
    assert fault["edit"] == edit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n",
        "a: [\n",
        "a: 1\na: 2\n",
        "\t",
        "x: &a [*a]\n",
        "!!python/object:os.x {}\n",
        "\0",
    ],
)
def test_bad_text_is_refused_with_a_place(text: str, run: Runner) -> None:
    for command in ("check", "plan", "train"):
        answer = run(command, write("bad.yaml", text))
        assert answer.status == 2
        assert re.match(r"bad\.yaml:\d+:\d+: error\[", answer.err)
        assert "Traceback" not in answer.err
    assert files() == {"bad.yaml"}


@pytest.mark.parametrize("command", ["check", "plan", "train"])
def test_a_missing_recipe_is_refused(command: str, run: Runner) -> None:
    answer = run(command, "none.yaml")
    assert answer.status == 2
    assert answer.err.startswith("none.yaml:1:1: error[file]: ")


def test_a_refused_command_leaves_no_files(run: Runner) -> None:
    bad = write("bad.yaml", RECIPE.replace("heads: 2", "heads: 3"))
    assert run("train", bad).status == 2
    assert run("train", write("good.yaml", RECIPE), "training.no_such=1").status == 2
    assert files() == {"bad.yaml", "good.yaml"}


def test_a_fault_in_an_override_names_the_override(run: Runner) -> None:
    answer = run("train", write("good.yaml", RECIPE), "model.width=wide")
    assert answer.status == 2
    assert answer.err.startswith("<command line>:1:")


# -------------------------------------------------------------------------------------------
# looking things up


def test_plan_prints_blocks_and_totals_as_json(run: Runner) -> None:
    answer = run("plan", "--json", write("good.yaml", RECIPE))
    plan = json.loads(answer.out)
    assert answer.status == 0
    assert {"path", "width", "parameters", "flops", "state_bytes"} <= set(plan["blocks"][0])
    assert plan["parameters"] > 0
    assert plan["flops"] > 0


def test_plan_prints_a_table(run: Runner) -> None:
    answer = run("plan", write("good.yaml", RECIPE))
    assert answer.status == 0
    assert "cross_attention" in answer.out
    assert "…" not in answer.out


LARGE = """\
recipe: 1
data: {generate: {copy: {max_length: 6, train: 50, val: 4, test: 4}}}
model:
  width: 8
  encoder: [{repeat: {times: 3, stack: [feed_forward]}}]
  decoder: [{rnn: gru}, cross_attention]
  output: {tie: [target]}
"""


def test_what_is_frozen_is_counted(run: Runner) -> None:
    write("large.yaml", LARGE)
    groups = "training.parameter_groups=[{blocks: decoder, factor: 0}]"
    everything, some = (
        json.loads(run("plan", "large.yaml", *more, "--json").out) for more in ([], [groups])
    )
    assert (everything["frozen"], everything["parameters"]) == (0, some["parameters"])
    # what is frozen has no gradient and no two moments
    saved = everything["training"]["weight_bytes"] - some["training"]["weight_bytes"]
    assert saved == 4 * 3 * some["frozen"] > 0
    count = f"{some['frozen']:,}"
    assert f"Frozen by `training.parameter_groups`: {count} parameters, including tied" in (
        run("plan", "large.yaml", groups).out
    )
    assert (
        f"parameters, {count} of them frozen; trains for" in run("check", "large.yaml", groups).out
    )


def test_plan_says_what_its_rows_have_in_common_and_what_training_takes(run: Runner) -> None:
    answer = run("plan", write("large.yaml", LARGE)).out
    assert re.search(r"repeat x 3 ", answer)
    assert "Rows in a repeat count all of its iterations." in answer
    assert re.search(r"model\.output.*, tied  ", answer)
    assert (
        "Tied: the parameters are those of model.decoder embedding, counted once in the sum."
        in answer
    )
    assert (
        "the tokenizer is not trained yet"
        in run("plan", "large.yaml", "data.tokenizer={bpe: {size: 300}}").out
    )
    training = re.search(
        r"Training: at most (.*) at its peak: (.*) for weights, gradients and adam, (.*) for a",
        answer,
    )
    plan = json.loads(run("plan", "large.yaml", "--json").out)
    # weights, gradients, two moments
    assert plan["training"]["weight_bytes"] == 4 * 4 * plan["parameters"]
    assert training
    outer = sum(block["parameters"] for block in plan["blocks"] if len(block["place"]) <= 4)
    tied = next(block for block in plan["blocks"] if block["tied_to"])
    # all but the bias of the output
    assert outer - plan["parameters"] == tied["parameters"] - tied["width"]


def test_settings_on_the_command_line_are_those_of_what_is_looked_at(run: Runner) -> None:
    file = write("good.yaml", RECIPE)
    small, wide = run("plan", file), run("plan", file, "model.width=16")
    assert small != wide
    prints = [run("fingerprints", file, *rest) for rest in ((), ("training.seed=7",))]
    assert prints[0].out.split()[5] != prints[1].out.split()[5]
    assert prints[0].out.split()[1] == prints[1].out.split()[1]  # of the model
    assert run("check", file, "model.width=16").out.endswith(
        f"next: seqcomposer train {file} model.width=16\n"
    )
    refused = run("check", file, "model.widht=16", file)
    assert (refused.status, refused.err.count("<command line>:1:7: error")) == (2, 1)
    assert run("check", "model.width=16").status == 2


def test_diff_shows_what_settings_change(run: Runner) -> None:
    file = write("good.yaml", RECIPE)
    other = write("other.yaml", RECIPE.replace("heads: 2", "heads: 1"))
    answer = run("diff", file, "model.width=16")
    assert answer.out.startswith("A  good.yaml\nB  good.yaml with settings\n")
    assert "width: 8 -> 16" in answer.out
    both = run("diff", file, other, "model.width=16").out
    assert "width: 8 -> 16" in both
    assert "heads: 2 -> 1" in both
    assert (run("diff", file).status, run("diff", file, other, file).status) == (2, 2)
    assert composer.diff(file, overrides=["model.width=16"]).text() == answer.out.rstrip("\n")
    with pytest.raises(TypeError, match="this recipe is loaded"):
        composer.diff(composer.load(file), overrides=["model.width=16"])


def test_blocks_lists_every_block(run: Runner) -> None:
    known = [
        key.removeprefix("block.")
        for key in schema_generator.load()["$defs"]
        if key.startswith("block.")
    ]
    listed = run("blocks")
    assert listed.status == 0
    for name in known:
        assert re.search(rf"^ ?{name} ", listed.out, re.MULTILINE)
        assert run("blocks", name).status == 0


def test_blocks_are_listed_by_family(run: Runner) -> None:
    listed = run("blocks").out
    order = [
        "attention",
        "self_attention",
        "convolution",
        "conv",
        "memory",
        "ntm",
        "recurrence",
        "rnn",
        "structure",
    ]
    lines = [line.split()[0] for line in listed.splitlines() if re.match(r" ?\w", line)]
    assert [line for line in lines if line in order] == order
    assert "other" not in lines  # every block of this project is in a family


def complete(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What the shell is given for the last word of a command."""
    monkeypatch.setenv("_SEQCOMPOSER_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"seqcomposer {typed}")
    with pytest.raises(SystemExit):
        main.main([])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ("blocks self_", '"self_attention":', "cross_attention"),
        (
            "train x.yaml training.max_st",
            '"training.max_steps=":"Updates of the weights."',
            "max_epochs",
        ),
        ("plan x.yaml training.optimizer.ad", '"training.optimizer.adam."', "sgd"),
        ("check x.yaml training.optimizer.adam.b", "training.optimizer.adam.beta1=", "eps"),
        ("diff mine.yaml mine.yaml model.wi", '"model.width="', "encoder"),
        ("translate ", "runs/a", "elsewhere"),
        ("report runs/", "runs/a", "mine"),
        ("translate --checkpoint best runs/a decoding.gr", '"decoding.greedy', "beam"),
        ("plan ", "mine.yaml", "text"),
        ("diff ", "mine.yaml", "text"),
        ("diff run", "runs/a", "mine"),
        ("train e", "elsewhere/", "mine"),
    ],
)
def test_completion_knows_blocks_settings_recipes_and_runs(
    typed: str,
    offered: str,
    not_offered: str,
    run: Runner,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("runs/a").mkdir(parents=True)
    Path("elsewhere").mkdir()
    write("runs/a/run.json", "{}")
    write("mine.yaml", RECIPE)
    write("text", "")
    answer = complete(typed, monkeypatch, capsys)
    assert offered in answer
    assert not_offered not in answer


def test_an_unknown_block_is_refused_with_a_suggestion(run: Runner) -> None:
    answer = run("blocks", "self_atention")
    assert answer.status == 2
    assert "did you mean `self_attention`?" in answer.err


def test_schema_is_json(run: Runner) -> None:
    assert json.loads(run("schema").out)["title"].startswith("seqcomposer recipe")


# ------------------------------------------------------------------------------------------- new


def lines_of(*texts: str) -> str:
    return "".join(f"{text} {number}\n" for number in range(20) for text in texts)


@pytest.mark.parametrize(
    ("source", "target", "recipe", "joint"),
    [
        ("english.txt", "greek.txt", "english-greek.yaml", "false"),
        ("data/my text.en", "data/my text.fr", "en-fr.yaml", "true"),
    ],
)
def test_new_writes_a_recipe_that_check_accepts(
    source: str, target: str, recipe: str, joint: str, run: Runner
) -> None:
    Path("data").mkdir()
    write(source, lines_of("a man sleeps"))
    write(target, lines_of("ένας άντρας κοιμάται" if joint == "false" else "un homme sleeps man"))
    answer = run("new", "--source", source, "--target", target)
    assert (answer.status, answer.err) == (0, "")
    text = Path(recipe).read_text(encoding="utf-8")
    assert "$schema=recipe.schema.json" in text  # relative, of no machine
    assert f"joint: {joint}" in text
    summary = (
        f"{recipe}: no errors; at most {parameters(run, recipe):,} parameters; trains for 5 minutes"
    )
    summary += " (processor time on a CPU)\n"
    assert run("check", recipe) == (0, f"{summary}next: seqcomposer train {recipe}\n", "")
    assert run("check", recipe, recipe) == (0, summary * 2, "")
    Path("my data").mkdir()
    *_, line = run("check", recipe, "--data", "my data").out.splitlines()
    assert line == f"next: seqcomposer train {recipe} --data 'my data'"


def parameters(run: Runner, recipe: str) -> int:
    return json.loads(run("plan", "--json", recipe).out)["parameters"]


def test_new_never_overwrites(run: Runner) -> None:
    arguments = (
        "new",
        "--source",
        write("a.en", lines_of("a")),
        "--target",
        write("a.de", lines_of("b")),
    )
    assert run(*arguments).status == 0
    before = Path("en-de.yaml").read_bytes()
    assert run(*arguments).status == 2
    assert Path("en-de.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("target", "code"), [(b"", "empty"), (b"a\n", "lines"), (b"\xff\n", "encoding"), (None, "file")]
)
def test_new_refuses_text_that_cannot_be_used(target: bytes | None, code: str, run: Runner) -> None:
    write("a.en", "a\nb\n")
    if target is not None:
        Path("a.de").write_bytes(target)
    answer = run("new", "--source", "a.en", "--target", "a.de")
    assert answer.status == 2
    assert answer.err.startswith(f"a.de:1:1: error[{code}]: ")
    assert "en-de.yaml" not in files()


# ------------------------------------------------------------------------------------------- a
# whole run


TRAINING = """\
training: {max_steps: 3, tokens_per_batch: 64, validate_every: 3}
logging: {wandb: false}
"""


def test_a_recipe_is_trained_translated_and_evaluated(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # BLEU is of longer lines
    recipe = write("small.yaml", RECIPE.replace("max_length: 6, ", "") + TRAINING)
    assert run("train", recipe, "model.width=4").status == 0
    assert {"recipe.yaml", "run.json", "tokenizer.json", "metrics.jsonl", "model.safetensors"} <= {
        path.name for path in Path("runs/small").iterdir()
    }
    assert run("train", recipe, "model.width=4").status == 2  # there is a run already
    assert run("train", recipe, "model.width=4", "--resume").status == 0  # and it has finished

    text = write("text", "a b\n\nb\n")
    answer = run(
        "translate",
        "runs/small",
        "decoding.greedy.max_length=5",
        "--input",
        text,
        "--output",
        "out",
    )
    assert (answer.status, answer.out) == (0, "")
    lines = Path("out").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 4
    assert lines[1] == ""

    answer = run("evaluate", "runs/small", "--json")
    scores = json.loads(answer.out)
    assert answer.status == 0
    assert {
        "test/loss",
        "test/perplexity",
        "test/token_accuracy",
        "test/exact_match",
        "test/bleu",
        "test/chrf",
    } <= set(scores)
    assert "test/bleu" in run("evaluate", "runs/small", "--split", "test").out
    assert run("evaluate", "runs/small", "--split", "tset").status == 2
    assert run("evaluate", "runs/none").status == 2


# ------------------------------------------------------------------------------------------- the
# process


def process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


HEAVY = """
import sys
from composer.cli.main import main
for words in sys.argv[1:]:
    try:
        main(words.split())
    except SystemExit as end:
        heavy = {"torch", "pytorch_lightning", "datasets", "wandb", "numpy"} & set(sys.modules)
        sys.stderr.write(f"\\n{words}: status {end.code}, heavy: {sorted(heavy)}\\n")
"""


def test_quick_answers_import_nothing_heavy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("bad.yaml", RECIPE.replace("heads", "heds"))
    statuses = {
        **dict.fromkeys(("--help", "train --help", "blocks", "blocks rnn", "schema"), 0),
        "check bad.yaml": 2,
    }
    answer = process(HEAVY, *statuses)
    printed = [line for line in answer.stderr.splitlines() if "heavy: " in line]
    assert printed == [f"{words}: status {status}, heavy: []" for words, status in statuses.items()]


def test_new_does_not_import_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.en", "a.de"):
        Path(name).write_text(
            "".join(f"{'a longer ' * 10}line {number}\n" for number in range(10_050))
        )
    answer = process(HEAVY, "new --source a.en --target a.de")
    assert answer.stderr.endswith("status 0, heavy: ['numpy']\n")


SIGNALLED = """
import os, signal, sys, time
from composer.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and all they start
@main.app.command("wait")
def wait():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    time.sleep(5)
main.main(["wait"])
"""


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_sets_the_exit_status(name: str, status: int) -> None:
    answer = process(SIGNALLED, name)
    assert (answer.returncode, answer.stderr) == (status, "")


def test_a_closed_pipe_exits_with_status_1(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "composer.cli.main", "schema"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout
        assert writer.stderr
        writer.stdout.close()
        assert writer.stderr.read() == ""
        assert writer.wait() == 1


# ------------------------------------------------------------------------------------------- the
# first five minutes


def test_help_begins_with_the_docstring_of_a_command(run: Runner) -> None:
    help_text = run("--help").out
    first = [
        line.split()[0] for line in help_text.partition("Commands:")[2].splitlines() if line.strip()
    ]
    assert first[:5] == ["new", "check", "plan", "train", "translate"]


def test_text_in_place_of_a_run_is_refused_with_the_right_command(run: Runner) -> None:
    Path("runs/mine").mkdir(parents=True)
    answer = run("translate", "runs/mine", "it's a man")
    assert answer.status == 2
    assert """printf '%s\\n' 'it'"'"'s a man' | seqcomposer translate runs/mine""" in answer.err


@pytest.mark.parametrize("command", ["translate", "evaluate", "report"])
def test_a_recipe_in_place_of_a_run_is_refused(command: str, run: Runner) -> None:
    answer = run(command, write("mine.yaml", RECIPE))
    assert answer.status == 2
    assert "mine.yaml: error[run]: this is a file, and a run is a folder\n" in answer.err
