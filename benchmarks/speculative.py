"""Speed of writing one text with a smaller run as the draft against writing it without.

    OMP_NUM_THREADS=1 python -m benchmarks.speculative RUN DRAFT [--tokens 256] [--rounds 5]
    [--prompt TEXT]

Greedily, and by drawing at temperature 0.8. All sides alternate in one process, in another order
every round. Prints the median ratio of speeds in processor time, which share of the drafted tokens
was accepted, and how many tokens each step of the model made; of greedy search also whether the
text is the same.

Runs to measure, a model and one an eighth of its size, on Shakespeare in characters:

    seqcomposer train benchmarks/speculative.yaml --data DATA --run RUN
    seqcomposer train benchmarks/speculative.yaml --data DATA --run DRAFT vars.layers=1
    training.max_minutes=1
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from composer.data.pairs import TARGET
from composer.inference.decode import Row, decode_all
from composer.inference.decoders.search import Options
from composer.inference.draft_runs import open_draft
from composer.inference.drafts import Draft
from composer.inference.methods import Greedy, Sample
from composer.inference.run import Run, open_run
from composer.recipe.choices import Decoder


def write(
    run: Run, decoding: Decoder, prompt: list[int], draft: Draft | None
) -> tuple[list[int], float]:
    """Return a text, and its processor seconds for each token."""
    start = time.process_time()
    ((best,),) = decode_all([run.model], [Row(prefix=prompt)], decoding, Options(draft=draft))
    return best.ids, (time.process_time() - start) / max(len(best.ids) - len(prompt), 1)


def compare(run: Run, small: Run, decoding: Decoder, prompt: list[int], rounds: int) -> None:
    sides = {"no draft": None, "a smaller run": open_draft(small, [run], decoding)}
    texts = {name: write(run, decoding, prompt, draft)[0] for name, draft in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in [*sides][:: 1 if number % 2 else -1]:
            seconds[name].append(write(run, decoding, prompt, sides[name])[1])
    kind = decoding.word
    print(f"{kind}, no draft: {1 / statistics.median(seconds['no draft']):,.0f} tokens/s")
    for name, draft in [*sides.items()][1:]:
        ratios = [
            plain / own for plain, own in zip(seconds["no draft"], seconds[name], strict=True)
        ]
        same = f", the same text: {texts[name] == texts['no draft']}" if kind == "greedy" else ""
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{kind}, {name}: {spread} of the speed without; {draft}{same}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("draft")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", default="ROMEO:\n")
    options = parser.parse_args()
    run, small = open_run(options.run), open_run(options.draft)
    (prompt,) = run.tokenizers.encode(TARGET, [options.prompt])
    weights = [
        sum(parameter.numel() for parameter in one.model.parameters()) for one in (run, small)
    ]
    print(f"{weights[0]:,} parameters, the draft {weights[1]:,}")
    shared: dict[str, Any] = {"max_length": options.tokens}
    for decoding in (Greedy(**shared), Sample(**shared, temperature=0.8)):
        compare(run, small, decoding, prompt, options.rounds)


if __name__ == "__main__":
    main()
