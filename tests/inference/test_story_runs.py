"""Runs that read stories: what `translate` takes, what `evaluate` measures, and that all ways give
one answer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer.data.encoding import load_data
from composer.data.stories import encode_side
from composer.errors import DataError, RunError
from composer.evaluation.scores import evaluate
from composer.inference.methods import Greedy
from composer.inference.run import Run, open_run, translate_lines
from composer.model.builder import build
from composer.model.special_tokens import BOS, EOS, PAD
from composer.model.weights import save_weights
from composer.recipe.recipe import load, load_text
from composer.run_dir import RunDir
from composer.training.train import train
from composer.viz.alignments import alignments
from tests.inference.small_models import decode
from tests.inference.untrained import record_hashes
from tests.run_records import write_record

RECIPE = """
recipe: 1
name: stories
data:
  babi: {folder: tasks, tasks: [1, 2], val: 0.2, words: 5, sentences: 4}
  tokenizer: {word: {split: spaces, joint: true}}
model:
  width: 16
  encoders: {question: [rnn], story: [sum_columns]}
  decoder: [{rnn: {initial_state: question}}, {cross_attention: {from: story, heads: 1}}]
  output: {length: 1}
training: {tokens_per_batch: 16, max_steps: 3}
logging: {wandb: false}
"""
PLACES = ("hall", "garden", "office")


def lines(task: int) -> str:
    """Stories of three moves with a question after each; the first task asks for the last place of
    the last mover.
    """
    lines = []
    for n in range(20):
        for step in range(3):
            who, where = "ABC"[(n + step) % 3], PLACES[(n * task + step) % 3]
            lines.append(f"{2 * step + 1} {who} went to {where}.")
            lines.append(f"{2 * step + 2} Where is {who}?\t{where}\t{2 * step + 1}")
    return "\n".join(lines) + "\n"


def write_recipe(folder: Path) -> Path:
    """The recipe, with two tasks beside it."""
    (folder / "tasks").mkdir()
    for task in (1, 2):
        for split in ("train", "test"):
            (folder / "tasks" / f"qa{task}_moves_{split}.txt").write_text(
                lines(task), encoding="utf-8"
            )
    (folder / "stories.yaml").write_text(RECIPE, encoding="utf-8")
    return folder / "stories.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("stories")
    recipe = load(write_recipe(folder))
    inside = folder / "run"
    inside.mkdir()
    tokenizers = load_data(recipe, [folder]).tokenizers
    (inside / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    tokenizers.save(inside / "tokenizer.json")
    torch.manual_seed(1)
    model = build(recipe, tokenizers.sizes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_weights(model, inside / "model.safetensors")
    write_record(
        RunDir(inside),
        {"name": "stories", "status": "finished", "data": {"folders": [str(folder)]}},
    )
    record_hashes(inside)
    return open_run(inside)


def test_case_and_punctuation_of_a_story_do_not_matter(run: Run) -> None:
    dresses = [
        "where is a\ta went to hall. b went to office.",
        "Where is A?\tA went to hall.   B went to office",
        " where is a ?\tA went to HALL! B went to office.",
    ]
    answers = run.translate([*dresses, "", "where is b\ta went to hall. b went to office."])
    assert answers[0]
    assert answers[:3] == [answers[0]] * 3
    assert answers[3] == ""
    assert all(len(answer.split()) == 1 for answer in answers if answer)


def test_only_the_last_sentences_are_read(run: Run) -> None:
    last = "a went to hall. b went to office. c went to hall. a went to garden."
    stories = [
        f"where is b\t{first}{last}"
        for first in ("", "b went to hall. ", "b never went to that hall at all. ")
    ]
    scores = [best.score for best, *_ in translate_lines([run], stories, run.recipe.decoding)]
    assert scores == [scores[0]] * 3
    other = [f"where is b\t{last.replace('office', 'garden')}"]
    assert translate_lines([run], other, run.recipe.decoding)[0][0].score != scores[0]


def test_stories_of_all_sizes_are_answered_together_as_alone(run: Run) -> None:
    stories = [
        "a went to hall",
        "b went. c went to office. a went to hall",
        "c went to garden. a went.",
    ]
    lines = [f"where is a\t{story}" for story in stories]
    together = translate_lines([run], lines, run.recipe.decoding)
    for line, (best, *_) in zip(lines, together, strict=True):
        alone = translate_lines([run], [line], run.recipe.decoding)[0][0]
        assert alone.text == best.text
        assert alone.score == pytest.approx(best.score, abs=1e-5)
    twice = translate_lines([run, run], lines, run.recipe.decoding)
    assert [best.text for best, *_ in twice] == [best.text for best, *_ in together]


def test_an_ensemble_reads_stories_of_the_same_shape(run: Run) -> None:
    """Each line is encoded once, as the first run reads it."""
    text = run.recipe.dump().replace("sentences: 4", "sentences: 2")
    other = Run.from_model(load_text(text), run.tokenizers, run.model)
    with pytest.raises(RunError, match="this run reads `story` in another form than"):
        translate_lines([run, other], ["where is a\ta went to hall."], run.recipe.decoding)


def test_decoding_returns_the_argmax_of_the_model(run: Run) -> None:
    texts = {"question": ["where is a"], "story": ["a went to hall. b went to office"]}
    ids = {
        side: encode_side(run.recipe, run.tokenizers, side, lines) for side, lines in texts.items()
    }
    story = torch.tensor(ids["story"][0])[None]
    assert tuple(story.shape) == (1, 2, 5)
    assert int((story == PAD).sum()) == 2
    with torch.no_grad():
        sources = {"question": torch.tensor([[*ids["question"][0], EOS]]), "story": story}
        log_p = run.model(sources, torch.tensor([[BOS]]))[0, 0].log_softmax(-1)
    best = decode([run.model], ids, Greedy())[0][0]
    assert best.ids == [int(log_p.argmax())]
    assert best.score == pytest.approx(float(log_p.max()), abs=1e-5)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("where is a", "columns", "1 text, and the model reads 2: question, story"),
        ("where is a\t", "story", "no sentence"),
        ("where is a\t . ", "story", "no sentence"),
        ("where is a\ta went to the big hall.", "story", "has 6 words, and there is room for 5"),
    ],
)
def test_a_text_that_is_no_story_is_refused_with_its_line(
    run: Run, line: str, code: str, message: str
) -> None:
    for translate_or_align in (run.translate, lambda lines: alignments(run, lines)):
        with pytest.raises(DataError, match=message) as caught:
            translate_or_align(["where is a\ta went to hall.", line])
        assert [(fault.line, fault.code) for fault in caught.value.faults] == [(2, code)]


def test_evaluate_scores_the_output_of_translate(run: Run) -> None:
    scores = evaluate(run, "train")
    pairs = load_data(run.recipe, run.folders(), run.tokenizers, ["train"]).pairs["train"]
    lines = [
        f"{one}\t{other}"
        for one, other in zip(pairs.sides["question"], pairs.sides["story"], strict=True)
    ]
    answers = run.translate(lines)
    right = sum(one == other for one, other in zip(answers, pairs.sides["target"], strict=True))
    assert scores["train/exact_match"] == right / len(lines)
    # the answer's end is certain, and so the other half of the tokens
    assert scores["train/token_accuracy"] == pytest.approx((1 + right / len(lines)) / 2)


@pytest.mark.parametrize("words", [9, 10])  # of which ten would fill two sentences of five
def test_files_with_a_text_that_is_no_story_are_not_evaluated(
    run: Run, tmp_path: Path, words: int
) -> None:
    texts = {"questions": "where is a\n" * 3, "answers": "hall\n" * 3}
    texts["stories"] = f"a went to hall.\na went to hall. {' '.join('abcdefghij'[:words])}.\n\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as raised:
        evaluate(
            run,
            sources=[tmp_path / "questions", tmp_path / "stories"],
            targets=[tmp_path / "answers"],
        )
    assert [(fault.file, fault.line, fault.message) for fault in raised.value.faults] == [
        (
            str(tmp_path / "stories"),
            2,
            f"a sentence of this story has {words} words, and there is room for 5",
        ),
        (str(tmp_path / "stories"), 3, "this story has no sentence"),
    ]


def test_one_task_of_several_can_be_evaluated(run: Run) -> None:
    counts = []
    for tasks in ("[1]", "[2]", "[1, 2]"):
        opened = open_run(run.run_dir.path, [f"data.babi.tasks={tasks}"])
        counts.append(
            len(
                load_data(opened.recipe, opened.folders(), opened.tokenizers, ["test"]).pairs[
                    "test"
                ]
            )
        )
        assert 0 <= evaluate(opened)["test/exact_match"] <= 1
    assert counts == [60, 60, 120]
    with pytest.raises(RunError, match=r"data\.babi\.words=9"):
        open_run(run.run_dir.path, ["data.babi.words=9"])


def test_pictures_name_sentences(run: Run) -> None:
    (result,) = alignments(run, ["where is a\ta went to hall. b went to office."])
    (attention,) = [record for record in result.attentions if record.word == "cross_attention"]
    assert attention.columns == ["a went to hall", "b went to office"]
    assert attention.weights.shape[-1] == 2


def test_training_on_stories_goes_to_its_end(tmp_path: Path) -> None:
    recipe = load(write_recipe(tmp_path))
    done = train(recipe, run=tmp_path / "run")
    assert {"val/exact_match", "test/exact_match"} <= set(done.scores)
    assert done.record.steps == 3
    assert open_run(tmp_path / "run").translate(["where is a\ta went to hall."])[0]


CURRICULUM = "training.curriculum={start: 1, by: story}"


def test_a_curriculum_counts_sentences(tmp_path: Path) -> None:
    recipe = load(write_recipe(tmp_path), [CURRICULUM])
    assert train(recipe, run=tmp_path / "run").record.steps == 3
