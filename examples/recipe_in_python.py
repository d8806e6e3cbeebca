"""A recipe in Python: a GRU with attention learns to reverse strings of letters."""

from dataclasses import replace

import composer
from composer import block, choose
from composer.recipe.sections import Data, Logging, Model, Recipe, Training

recipe = Recipe(
    name="reverse",
    # 6,000 generated pairs such as "a c b" and "b c a"
    data=Data(generate=choose.task.reverse(symbols=5, max_length=6, train=6000, val=100, test=100)),
    model=Model(
        width=32,
        encoder=[block.rnn("gru", bidirectional=True)],
        decoder=[block.rnn("gru", initial_state="encoder"), block.cross_attention()],
    ),
    training=Training(optimizer=choose.optimizer.adam(learning_rate=1e-2), max_steps=200),
    logging=Logging(wandb=False),
)

# errors come as a list, each with the line of the YAML that it would be
assert composer.check(recipe) == []
print(f"{composer.plan(recipe).parameters:,} parameters")

# a recipe in Python is immutable; `replace` makes another one
wide = replace(recipe, model=replace(recipe.model, width=64))
print(composer.diff(recipe, wide).text())

# a file with the same recipe, for the command line and for others
recipe.save("reverse.yaml")

result = composer.train(recipe, run="runs/reverse")
print(f"exact match on the test data: {result.scores['test/exact_match']:.0%}")
print(composer.open_run("runs/reverse").translate(["a b c d", "e d"]))
