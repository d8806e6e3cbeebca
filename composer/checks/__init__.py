"""Rules of recipes beyond the types and bounds of the JSON Schema.

A rule takes its inputs and yields problems: a code, the path at fault, a message and a fix. There
are four kinds, by their inputs, which run in this order. Each module lists its rules in a tuple:

1. The recipe alone: `data`, `model`, `training` and `trainer`. Loading a recipe runs them after
   its schema (`sections.refuse`); their problems are errors.
2. The recipe and its built model: `built_model`, without numbers; `block_values`, of foreign
   blocks, with numbers; `no_effect`, whose problems are warnings. Planning runs them (`planner`).
3. The recipe and its data, or a sample: `answers`, `media`, `overlap`, `tables` and `texts`, whose
   problems are warnings; `budget` needs only the number of steps of an epoch. `teacher`, of the
   run that `training.distillation` names, refuses.
4. The recipe and this machine: `machine`. `check --any-machine` leaves these out.

An error: the recipe cannot be trained, or something else than written would be. A warning: it
trains, but probably not as meant. `seqcomposer check` and `train` run the same rules: `check` on a
sample of large data and before anything has begun (`composer.training.preflight`), `train` on all
data and on the model that it has built.
"""
