"""Plant one fault after the other in what leaves the house; a named test must fail for each.

    python -m verify.planted_faults [FAULT ...] [--list]

The checkout is copied, a few words of one file are replaced, and the test runs in the copy. First
all tests run without a fault. Prints a row for each; exit status 1 if a fault is not caught, or a
test fails without one. Tests of the browser are left out where they are skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parent.parent
RUNNER = "composer/exporters/runner.py"
PARTS = "composer/programs/parts.py"
FILES = "composer/programs/files.py"
ENGINE = "composer/inference/onnx_model.py"
CACHE = "composer/inference/run_programs.py"
LOOPS = "blocks/core/loops.py"
PAGE = "composer/exporters/web"
OF_RUNNER = "tests/exporters/test_runner.py::test_"
OF_PROGRAMS = "tests/programs/test_files.py::test_"
OF_ENGINE = "tests/inference/test_engine.py::test_"
OF_PAGE = "tests/exporters/test_web_export.py::test_"
OF_SERVER = "tests/server/test_requests.py::test_"
OF_BLOCKS = "tests/laws/test_exported_blocks.py::test_"
PACKAGES = "tests/browser/node_modules"
"""What `npm ci` installs, without which tests of the browser are skipped."""
PASSED, FAILED = 0, 1
"""Exit statuses of pytest."""


@dataclass(frozen=True)
class Fault:
    """Words of a file that are replaced by wrong ones, and the test that must fail then."""

    name: str
    file: str
    right: str
    wrong: str
    test: str


FAULTS = (
    Fault(
        "the state of a beam is not reordered",
        RUNNER,
        "if same_lines and [*rows] == [*range(len(rows))]:",
        "if same_lines:",
        f"{OF_RUNNER}a_beam_finds_the_same_with_each_length_penalty",
    ),
    Fault(
        "memories stay where they were when a line has ended",
        RUNNER,
        'moving = [f"state.{at}" for at in self.changed] if same_lines else [*state]',
        'moving = [f"state.{at}" for at in self.changed]',
        f"{OF_RUNNER}greedy_search_finds_the_same",
    ),
    Fault(
        "sources are padded with a token",
        RUNNER,
        'fill = np.nan if first.dtype.kind == "f" else PAD',
        'fill = np.nan if first.dtype.kind == "f" else UNK',
        f"{OF_RUNNER}greedy_search_finds_the_same",
    ),
    Fault(
        "the end of an answer is not counted in its length",
        RUNNER,
        "rank = score / self.penalty(len(ids) + 1)",
        "rank = score / self.penalty(len(ids))",
        f"{OF_RUNNER}a_beam_finds_the_same_with_each_length_penalty",
    ),
    Fault(
        "an answer may be one token too long",
        RUNNER,
        "if worst < bound and len(going[0].ids) < longest:",
        "if worst < bound and len(going[0].ids) <= longest:",
        f"{OF_RUNNER}limits_of_length_and_ratio_are_the_same",
    ),
    Fault(
        "a search ends at the first answer",
        RUNNER,
        "bound = going[0].score / self.penalty(longest) if going else -math.inf",
        "bound = -math.inf",
        f"{OF_RUNNER}a_beam_finds_the_same_with_each_length_penalty",
    ),
    Fault(
        "scores after a short prefix are those of a longer one",
        RUNNER,
        "elif at == len(one.ids):",
        "elif at >= len(one.ids):",
        f"{OF_RUNNER}prefixes_of_several_lengths_begin_the_answers_and_count",
    ),
    Fault(
        "an answer that was cut ranks with the others",
        RUNNER,
        "key=lambda one: (cut_last and not one.ended, -one.rank)",
        "key=lambda one: -one.rank",
        f"{OF_RUNNER}an_answer_of_several_sizes_counts_at_its_best",
    ),
    Fault(
        "n-grams of the prefix may be repeated",
        RUNNER,
        "exclude(log_p, repeating(one.ids, size))",
        "exclude(log_p, repeating(one.ids[len(query.prefix) :], size))",
        f"{OF_RUNNER}no_ngram_is_repeated_nor_that_of_the_prefix",
    ),
    Fault(
        "top-p leaves out the token that reaches it",
        RUNNER,
        "values[order[p.cumsum() - p >= settings.top_p]] = -np.inf",
        "values[order[p.cumsum() >= settings.top_p]] = -np.inf",
        f"{OF_RUNNER}tokens_are_drawn_by_the_same_probabilities",
    ),
    Fault(
        "what is no pixel is black",
        RUNNER,
        "grid = np.full((len(turned), *shape), np.nan, np.float32)",
        "grid = np.full((len(turned), *shape), 0.0, np.float32)",
        f"{OF_RUNNER}files_are_read_as_they_were",
    ),
    Fault(
        "weights of another training are not noticed",
        RUNNER,
        'hashlib.file_digest(file, "sha256").hexdigest() != digest:',
        'len(hashlib.file_digest(file, "sha256").hexdigest()) != len(digest):',
        "tests/exporters/test_runner_mistakes.py::test_an_export_that_is_not_whole_is_refused",
    ),
    Fault(
        "a leaf that changes is taken for one that does not",
        PARTS,
        "if old is not new)",
        "if at and old is not new)",
        f"{OF_ENGINE}both_engines_find_the_same_answers",
    ),
    Fault(
        "the mask of a memory is forgotten",
        PARTS,
        'tensors[f"{MEMORY}{name}.mask"] = memory.mask',
        'tensors[f"{MEMORY}{name}.mask"] = torch.ones_like(memory.mask)',
        f"{OF_ENGINE}both_engines_find_the_same_answers",
    ),
    Fault(
        "programs differ from the model, and nobody compares them",
        FILES,
        "if problem := difference(program, session, inputs, tolerance):",
        "if problem := difference(program, session, inputs, tolerance) and None:",
        f"{OF_PROGRAMS}a_program_that_differs_from_its_model_is_refused",
    ),
    Fault(
        "a size becomes a constant",
        "composer/programs/graphs.py",
        'symbols[several] = torch.export.Dim(f"size_{len(symbols)}", min=smallest, max=LARGEST)',
        "symbols[several] = torch.export.Dim.AUTO",
        f"{OF_PROGRAMS}a_size_that_becomes_a_constant_is_refused_with_its_block",
    ),
    Fault(
        "tied weights are stored twice",
        "composer/programs/weights_file.py",
        "digest = hashlib.sha256(content).digest()",
        'digest = f"{graph.graph.name} {value.name} {id(graph)}".encode()',
        f"{OF_PROGRAMS}every_weight_is_stored_once_a_tied_one_too",
    ),
    Fault(
        "programs of other weights are taken from the cache",
        CACHE,
        "for name, tensor in sorted(tensors.items()):",
        "for name, tensor in sorted(tensors.items())[:0]:",
        f"{OF_ENGINE}programs_are_made_once_and_again_for_other_weights",
    ),
    Fault(
        "the state before a token is that before the last one",
        ENGINE,
        "leaves[at] = made[next_name(at)]",
        "leaves[at] = read[state_name(at)]",
        f"{OF_ENGINE}both_engines_find_the_same_answers",
    ),
    Fault(
        "a loop over positions takes the turns of the one before",
        LOOPS,
        "which = torch.as_tensor(number)[None] % count",
        "which = (torch.as_tensor(number)[None] + 1) % count",
        "tests/laws/test_exported.py::test_a_recipe_of_each_kind_is_exported"
        "[papers/kaiser_sutskever2016]",
    ),
    Fault(
        "a loop over positions runs over the other dimension",
        LOOPS,
        "over = [x.movedim(dim, 0) for x in inputs]",
        "over = [x.movedim(dim, 0).flip(0) for x in inputs]",
        f"{OF_BLOCKS}a_block_is_exported[slstm-encoder]",
    ),
    Fault(
        "answers of a batch go to another client",
        "composer/server/worker.py",
        "at += len(job.lines)",
        "at += 1",
        f"{OF_SERVER}requests_of_equal_settings_are_decoded_together",
    ),
    Fault(
        "lines of other settings are decoded together",
        "composer/server/jobs.py",
        "return id(self.run), self.beam, self.n_best, self.prefixes is None",
        "return id(self.run), self.n_best, self.prefixes is None",
        f"{OF_SERVER}requests_of_equal_settings_are_decoded_together",
    ),
    Fault(
        "the page takes a state from the wrong rows",
        f"{PAGE}/search.js",
        "const rows = open.map(each => each.row);",
        "const rows = open.map((_, row) => row);",
        f"{OF_PAGE}a_page_answers_as_the_model_does[attention]",
    ),
    Fault(
        "the page counts no end in the length of an answer",
        f"{PAGE}/search.js",
        "((5 + question.prefix.length + tokens) / 6) ** settings.length_penalty;",
        "((4 + question.prefix.length + tokens) / 6) ** settings.length_penalty;",
        f"{OF_PAGE}a_page_ranks_by_the_length_penalty_of_the_recipe",
    ),
)


def copied(folder: Path) -> None:
    """Copy the files of the checkout, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=HOME, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (HOME / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((HOME / name).read_bytes())
    if (HOME / PACKAGES).is_dir():
        (folder / PACKAGES).symlink_to(HOME / PACKAGES)


def test_status(test: str, folder: Path) -> tuple[int, bool]:
    """Return the exit status of a test in a copy, and whether all of it was skipped."""
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-m", "", test]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    last = (done.stdout.splitlines() or [""])[-1]
    return done.returncode, "skipped" in last and "passed" not in last


def is_caught(fault: Fault, folder: Path) -> bool:
    """Return whether its test fails with a fault. Raises ValueError if it fits the file no more."""
    file = folder / fault.file
    content = file.read_text(encoding="utf-8")
    if content.count(fault.right) != 1:
        raise ValueError(f"{fault.file} has not once: {fault.right}")
    file.write_text(content.replace(fault.right, fault.wrong), encoding="utf-8")
    try:
        status, _ = test_status(fault.test, folder)
    finally:
        file.write_text(content, encoding="utf-8")
    return status == FAILED


def main(words: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("faults", nargs="*", help="parts of their names; all without any")
    parser.add_argument("--list", action="store_true", help="print faults and tests, and end")
    options = parser.parse_args(words)
    faults = []
    for fault in FAULTS:
        if not options.faults or any(part in fault.name for part in options.faults):
            faults.append(fault)
    if options.list:
        print("\n".join(f"{fault.name}: {fault.test}" for fault in faults))
        return 0
    problems = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        skipped = set()
        for test in dict.fromkeys(fault.test for fault in faults):
            status, is_skipped = test_status(test, folder)
            if is_skipped:
                skipped.add(test)
            elif status != PASSED:
                problems += 1
                print(f"FAILS WITHOUT A FAULT  {test}", flush=True)
        for fault in faults:
            if fault.test in skipped:
                print(f"skipped     {fault.name}", flush=True)
                continue
            caught = is_caught(fault, folder)
            problems += not caught
            print(f"{'caught' if caught else 'NOT CAUGHT'}  {fault.name}: {fault.test}", flush=True)
    print(f"{problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
