"""Rules of recipes beyond the types and bounds of the JSON Schema.

A rule takes what it needs and yields problems: a code, the path at fault, what is wrong, and what
to do. There are four kinds, by what they need; in this order they run, and each module lists its
own in a tuple:

1. The recipe alone. The modules `data`, `model`, `training` and `trainer` have the RULES of these
sections. Loading a
   recipe runs them (`sections.refuse`), after its schema: what they find are errors.
2. The recipe and its built model: `built_model`, without numbers, and `block_values`, of blocks
that are not ours, with
   numbers. Planning runs them. `no_effect` is of this kind, too: settings that change nothing
   beside the others, which are warnings.
3. The recipe and its data, or a sample: `answers`, `media`, `overlap`, `tables` and `texts`,
warnings all; `budget`
   needs no more of the data than how many steps an epoch has.
4. The recipe and this machine: `machine`. `check --any-machine` leaves these out.

An error is what cannot be trained, or would train something else than what is written. A warning is
of what trains, and probably not as was meant. `seqcomposer check` and `train` run the same rules,
and so say the same: `check` of a sample of large data, and of this machine before anything has
begun (`composer.training.preflight`), `train` of all data and of the model that it has built.
"""
