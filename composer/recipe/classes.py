"""The recipe language as Python classes: `Residual([Norm("rms")])` is `residual: [{norm: rms}]`.

    from composer.recipe.classes import CrossAttention, Data, FeedForward, Model, NumberWordsTask, Recipe
    from composer.recipe.classes import Residual, SelfAttention

    small = Recipe(
        data=Data(generate=NumberWordsTask()),
        model=Model(
            width=64,
            encoder=[Residual([SelfAttention(heads=4)])],
            decoder=[Residual([SelfAttention(heads=4)]), CrossAttention(), Residual([FeedForward(hidden=128)])],
        ),
    )
    small.save("small.yaml")
    small.recipe().plan()

Only what is given is written. A name that Python keeps for itself has a `_` behind it: `from_`, `as_`. `Var("width")`
is `$width`. Lists, mappings and texts may stand where classes do: so do blocks of plug-ins. `read` makes the objects
of a file. Generated from the schema by `seqcomposer schema --write`; do not edit.
"""

# fmt: off
# ruff: noqa: E501, RUF022
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from composer.recipe.serialization import UNSET, RecipeObject, RecipeObjectRoot, Unset, Var, read_recipe


class Block(RecipeObject):
    """A block: its name, or its name with settings."""


class Optimizer(RecipeObject):
    """One of the optimizers: its name, or its name with settings."""


class Decoder(RecipeObject):
    """One of the decoders: its name, or its name with settings."""


class Schedule(RecipeObject):
    """One of the schedules: its name, or its name with settings."""


class Task(RecipeObject):
    """One of the tasks: its name, or its name with settings."""


class Tokenizer(RecipeObject):
    """One of the tokenizers: its name, or its name with settings."""


class Initialization(RecipeObject):
    """One of the initializations: its name, or its name with settings."""


class Embedding(RecipeObject):
    """One of the embeddings: its name, or its name with settings."""


class OutputHead(RecipeObject):
    """One of the outputs: its name, or its name with settings."""


AnyBlock = Block | Literal["activation", "cgru", "concat_columns", "conv", "conv2d", "cross_attention", "delta_net", "deque_memory", "differential_attention", "discrete_stacks", "dropout", "episodic_memory", "feed_forward", "flatten", "gated_delta_net", "gated_linear_attention", "grid", "identity", "latent_attention", "linear", "linear_attention", "long_conv", "mamba", "mamba2", "maxout", "memory_network", "mlstm", "no_input", "norm", "nram", "ntm", "pool", "pool2d", "pool_hierarchical", "positions", "pyramid", "queue_memory", "retention", "reverse", "rg_lru", "rnn", "rwkv7", "scale", "select_column", "self_attention", "slstm", "source_state", "stack_memory", "sum_columns", "supporting_facts", "window_memory"] | Var | Mapping[str, Any]
AnyOptimizer = Optimizer | Literal["adadelta", "adagrad", "adam", "adamw", "rmsprop", "sgd"] | Var | Mapping[str, Any]
AnyDecoder = Decoder | Literal["beam", "greedy", "mbr", "sample", "viterbi"] | Var | Mapping[str, Any]
AnySchedule = Schedule | Literal["constant", "cosine", "epoch_decay", "inverse_sqrt", "linear", "plateau", "staircase"] | Var | Mapping[str, Any]
AnyTask = Task | Literal["associative_recall", "bigram_flip", "binary_addition", "binary_multiplication", "copy", "counting", "dialect", "duplicate", "dynamic_ngrams", "increment", "modular_sum", "multi_query_recall", "number_words", "parentheses", "priority_sort", "ram_access", "ram_copy", "ram_increment", "repeat_copy", "reverse", "sort", "vector_copy"] | Var | Mapping[str, Any]
AnyTokenizer = Tokenizer | Literal["bits", "bpe", "byte", "char", "integers", "unigram", "word"] | Var | Mapping[str, Any]
AnyInitialization = Initialization | Literal["default", "orthogonal", "uniform", "uniform_scaling"] | Var | Mapping[str, Any]
AnyEmbedding = Embedding | Literal["characters", "learned", "linear", "one_hot"] | Var | Mapping[str, Any]
AnyOutputHead = OutputHead | Literal["char_lstm", "cnn", "identity", "linear", "sigmoid"] | Var | Mapping[str, Any]
Stack = Sequence[AnyBlock]
"""Blocks, the first one first."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(RecipeObjectRoot):
    """A seqcomposer recipe: what to train, on what, and how.

    recipe_: The version of the recipe language.
    name: The name of the recipe and of its runs; the file's name without it.
    description: What it is for, in a sentence.
    extends: A recipe, or a list of recipes in which later wins, that this one changes; `null` removes a key. Each
        is a path from this file, `composer:papers/vaswani2017_base` for a recipe of this package, or `{pull: REF,
        sha256: HEX}`: what `seqcomposer pull REF` put into the cache.
    vars: Values with names; `$name` stands for one anywhere in the recipe, `${name}` for one inside a text.
    data: Data set and tokenizer.
    model: Model.
    training: Training.
    decoding: Decoding method; default 'greedy'.
    evaluation: How outputs are compared with their references.
    trainer: Lightning's own arguments.
    logging: Where metrics go.
    """
    recipe_: Literal[1] | Var | Unset | None = 1
    name: str | Var | Unset | None = UNSET
    description: str | Var | Unset | None = UNSET
    extends: str | Sequence[str | Mapping[str, Any] | Var] | Mapping[str, Any] | Var | Unset | None = UNSET
    vars: Mapping[str, Any] | Unset | None = UNSET
    data: Data | Mapping[str, Any] | Unset | None = UNSET
    model: Model | Mapping[str, Any] | Unset | None = UNSET
    training: Training | Mapping[str, Any] | Unset | None = UNSET
    decoding: AnyDecoder | Unset | None = UNSET
    evaluation: Evaluation | Mapping[str, Any] | Unset | None = UNSET
    trainer: Trainer | Mapping[str, Any] | Unset | None = UNSET
    logging: Logging | Mapping[str, Any] | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Asgd(RecipeObject):
    """Averaged SGD, with the trigger of NT-ASGD (Merity et al. 2018): the mean of the weights of all steps since the
    validation has stalled. Validations, `--checkpoint` and the final weights are of the mean; the training goes on
    with its own. The paper's optimizer is `sgd`.

    patience: It has stalled when its loss is above the best of those more than so many validations before it;
        default 5.
    """
    patience: int | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Audiofeatures(RecipeObject):
    """What a sound becomes.

    log_mel: Logarithms of mel energies: `{bands: 40, window: 0.025, hop: 0.01}`.
    """
    log_mel: Logmel | Mapping[str, Any] | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class BabiData(RecipeObject):
    """Stories with questions, in the files of the bAbI tasks (Weston et al. 2015).

    folder: The folder with files such as `qa1_..._train.txt`, looked up under `--data`, then beside the recipe.
    tasks: The numbers of the tasks, a list; several are trained on together.
    val: The share of the training questions that the training is watched with and not trained on; 0 is none;
        default 0.1.
    words: Words that a sentence has room for, the columns of the grid; a longer sentence is refused; default 16.
    sentences: Of a longer story only the last so many sentences are read; default 50.
    split_answers: Whether an answer of several words, which commas join, is so many tokens, and not one; default
        False.
    """
    folder: str | Var
    tasks: Sequence[int | Var] | Var
    val: float | Var | Unset = UNSET
    words: int | Var | Unset = UNSET
    sentences: int | Var | Unset = UNSET
    split_answers: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Activation(Block, word="activation"):
    """A nonlinearity by itself: y = f(x), for where a norm stands between a map and it.

    kind: relu | gelu | gelu_tanh | silu | tanh | sigmoid | glu | swiglu | geglu. gelu_tanh is gelu by its
        approximation with tanh. In the last three one half of the features gates the other, and half the width
        comes out; default 'silu'.
    as_: The name of the output, for later blocks.
    """
    kind: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset = field(default=UNSET, kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ActiveMemory(Block, word="active_memory"):
    """The decoder of the Extended Neural GPU (Kaiser & Bengio 2016, section 3): one step of the memory for each
    symbol.

    stack: The blocks f; they keep the grid. `tape` is the output tape, a grid as wide as what arrives here.
    from_: The memory to start from, a grid: an encoder's name, or `encoder.x` for its output named x. The only
        encoder where there is one.
    write: The columns of the tape that a symbol is written to: first, as in the paper's equation, or all, as in its
        authors' code; default 'first'.
    recompute: Whether a step's inner values are computed again for the gradients, which takes more time and less
        memory; default False.
    as_: The name of the output, for later blocks.
    """
    stack: Stack = field(kw_only=False)
    from_: str | Var | Unset | None = UNSET
    write: Literal["first", "all"] | Var | Unset = UNSET
    recompute: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Add(Block, word="add"):
    """The stream and named outputs, summed: y_t = scale (x_t + a_t + b_t ...).

    of: One name or several. An output with one position for all, such as a `pool`'s, is seen at every position.
    scale: What the sum is multiplied by, above 0; sqrt(0.5) keeps the variance of two (Gehring et al. 2017);
        default 1.0.
    as_: The name of the output, for later blocks.
    """
    of: str | Sequence[str | Var] | Var = field(kw_only=False)
    scale: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Cgru(Block, word="cgru"):
    """A convolutional gated recurrent unit (Kaiser & Sutskever 2016, section 2), one step from a grid to the next.

    kernel: Positions, then columns, that each convolution sees; one of 1 x 1 makes each cell a gru; default [3, 3].
    gates: g: cutoff, 1.2 sigmoid(z) - 0.1 cut to 0 and 1; plain, sigmoid(z); hard, (1 + z) / 2 cut to 0 and 1;
        default 'cutoff'.
    candidate: What makes the new values: tanh, or hard, which is z cut to -1 and 1; default 'tanh'.
    bias: What B' is at first; at 1 the unit begins by keeping most of s; default 1.0.
    reset_bias: What B'' is at first; as `bias` unless given.
    diagonal: Whether the gates are diagonal: a third of the features is taken from the position before, a third
        from the one after, in place of s in u * s (Freivalds & Liepins 2018, section 3); default False.
    dropout: Probability of dropping a value, 0 <= dropout < 1; default 0.0.
    dropout_of: Which values are dropped: state, s as it enters; or candidate, the tanh (tensor2tensor); default
        'state'.
    dropout_by: What that is for a row of n positions: rate, as it is; length, times 8 / n (as Kaiser & Sutskever's
        code has it); sqrt_length, times 3 / sqrt(n) (Kaiser & Bengio's); default 'rate'.
    saturation: Weight of the cost of gates that are nearly 0 or 1, and of a hard candidate nearly -1 or 1: the mean
        of what their arguments exceed nine tenths of the limit by (Freivalds & Liepins 2018, section 3); default
        0.0.
    with_: The name of another grid p to read; inside `active_memory`, `tape` is the output tape.
    as_: The name of the output, for later blocks.
    """
    kernel: Sequence[int | Var] | Var | Unset = field(default=UNSET, kw_only=False)
    gates: Literal["cutoff", "plain", "hard"] | Var | Unset = UNSET
    candidate: Literal["tanh", "hard"] | Var | Unset = UNSET
    bias: float | Var | Unset = UNSET
    reset_bias: float | Var | Unset | None = UNSET
    diagonal: bool | Var | Unset = UNSET
    dropout: float | Var | Unset = UNSET
    dropout_of: Literal["state", "candidate"] | Var | Unset = UNSET
    dropout_by: Literal["rate", "length", "sqrt_length"] | Var | Unset = UNSET
    saturation: float | Var | Unset = UNSET
    with_: str | Var | Unset | None = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Concat(Block, word="concat"):
    """The stream, then named outputs, side by side: y_t = [x_t; a_t; b_t ...].

    of: One name or several. An output with one position for all, such as a `pool`'s, is seen at every position.
    as_: The name of the output, for later blocks.
    """
    of: str | Sequence[str | Var] | Var = field(kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ConcatColumns(Block, word="concat_columns"):
    """The columns of a grid side by side: y_t = [s[t, 0]; s[t, 1]; ...], with zeros for cells that are not real.

    as_: The name of the output, for later blocks.
    """
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Conv(Block, word="conv"):
    """Convolution over the positions (with glu: Gehring et al. 2017, section 3.2; dilated: van den Oord et al. 2016).

    kernel: How many positions are read at once, 1 or more; default 3.
    activation: What is applied to the result; with glu, swiglu and geglu the convolution is twice as wide inside;
        default 'none'.
    dilation: Distance between two positions that are read, 1 or more; default 1.
    stride: Distance between two positions that come out, 1 or more; above 1 in an encoder only; default 1.
    width: The width that comes out; `model.width` unless given.
    depthwise: Whether each feature has a kernel of its own and reads no other (Kalchbrenner & Blunsom 2013, section
        3.1); the width that arrives is kept; default False.
    weight_norm: Whether the weights of each output are a gain times a direction, g v / |v| (Salimans & Kingma 2016,
        equation 2); default False.
    init_scale: What the initial weights are multiplied by, above 0: sqrt(1 - p) after a dropout of p (Gehring et
        al. 2017, section 3.5). They are normal, of variance c / (kernel D): c = 4 for a gate, 2 for relu, else 1;
        default 1.0.
    as_: The name of the output, for later blocks.
    """
    kernel: int | Var | Unset = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset = UNSET
    dilation: int | Var | Unset = UNSET
    stride: int | Var | Unset = UNSET
    width: int | Var | Unset | None = UNSET
    depthwise: bool | Var | Unset = UNSET
    weight_norm: bool | Var | Unset = UNSET
    init_scale: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Conv2d(Block, word="conv2d"):
    """Convolution over a grid, centred: y[t, w] = f(sum_ij W_ij s[r t + i - l, r' w + j - m] + b), of a stride r x r'.

    kernel: Positions, then columns, that are read at once; default [3, 3].
    activation: What is applied to the result; with glu, swiglu and geglu the convolution is twice as wide inside;
        default 'none'.
    width: The width that comes out; `model.width` unless given.
    stride: Distances between two positions, then columns, that come out: 1 or more, of columns as many as arrive at
        most; default [1, 1].
    align: center | start: Which cell of its kernel lies at r t, r' w; default 'center'.
    as_: The name of the output, for later blocks.
    """
    kernel: Sequence[int | Var] | Var | Unset = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset = UNSET
    width: int | Var | Unset | None = UNSET
    stride: Sequence[int | Var] | Var | Unset = UNSET
    align: Literal["center", "start"] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CrossAttention(Block, word="cross_attention"):
    """Attention over a memory: softmax of scores, y_t = sum_s softmax_s(e_ts) v_s.

    heads: How many heads; they divide `model.width`, and for the scores that return the values as they are the
        memory's width: each head compares by itself and reads its share of the values; default 1.
    score: scaled_dot | dot | general | additive | location | fine_grained; default 'scaled_dot'.
    from_: The memory to read: an encoder's name, or `encoder.x` for its output named x. The only encoder where
        there is one; with two it must be given. Several in a list are read by one softmax, with linear maps of its
        own for the values of each, to `model.width` (flat: Libovicky and Helcl 2017, section 3.1).
    query: A name that is read in place of the stream, as `prev.state`; of one position for all, by all.
    keys: What the keys are made of, where the memory is another output of the same encoder. By default `from`.
    values: What is read, likewise.
    local: none | monotonic | predicted. Where to look: at all, or at a window around p_t = t, or around p_t = S
        sigmoid(v.tanh(W q)) of the row's S positions, its weights times exp(-2 (s - p_t)^2 / window^2) (Luong et
        al. 2015, section 3.2); default 'none'.
    window: How many positions it reaches to each side of p_t; 10 by default.
    merge: concat | average. What the heads' weights do: each reads its share of the values, or their mean reads the
        whole; default 'concat'.
    max_length: How many positions the score `location` has a row for; later ones are not seen.
    sqrt_length: Whether what is read is multiplied by sqrt(S), S the row's length (Gehring et al. 2017, 3.5);
        default False.
    gate: Whether what is read is multiplied by sigmoid(w.q + b), one number for each position (Xu et al. 2015,
        arXiv 1502.03044, section 4.2.1); default False.
    doubly_stochastic: The weight of a penalty sum_s (1 - sum_t a_ts)^2 in training, so that all positions are read
        equally (Xu et al. 2015, equation 14); a is the mean over heads. The loss beside it is a mean over tokens,
        the paper's a sum; default 0.0.
    dropout: Probability of dropping an attention weight, 0 <= dropout < 1; default 0.0.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    score: Literal["scaled_dot", "dot", "general", "additive", "location", "fine_grained"] | Var | Unset = UNSET
    from_: str | Sequence[str | Var] | Var | Unset | None = UNSET
    query: str | Var | Unset | None = UNSET
    keys: str | Var | Unset | None = UNSET
    values: str | Var | Unset | None = UNSET
    local: Literal["none", "monotonic", "predicted"] | Var | Unset = UNSET
    window: int | Var | Unset | None = UNSET
    merge: Literal["concat", "average"] | Var | Unset = UNSET
    max_length: int | Var | Unset | None = UNSET
    sqrt_length: bool | Var | Unset = UNSET
    gate: bool | Var | Unset = UNSET
    doubly_stochastic: float | Var | Unset = UNSET
    dropout: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DeltaNet(Block, word="delta_net"):
    """DeltaNet (Schlag et al. 2021, arXiv 2102.11174, equation 24; Yang et al. 2024, arXiv 2406.06484, section 3.4).

    heads: How many heads; they divide the width that arrives, unless `head_width` is given; default 8.
    head_width: The width of a head's values; the width that arrives, divided by the heads, unless given.
    state: The width of a head's queries and keys; `head_width` unless given.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    short_conv: How many positions a depthwise convolution of q, k and v reads; in an encoder it is centred; 0 for
        none; default 4.
    negative_eigenvalues: Whether beta is between 0 and 2, in place of 0 and 1; default False.
    scale_queries: Whether q, of length 1, is divided by sqrt(state), as in the authors' code; default False.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of a
        delta_net). In an encoder, of the direction that reads forwards; the other begins empty; default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    negative_eigenvalues: bool | Var | Unset = UNSET
    scale_queries: bool | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DequeMemory(Block, word="deque_memory"):
    """A continuous double-ended queue (Grefenstette et al. 2015, section 3.3, equations 6 to 11).

    width: The width of a value; `model.width` unless given. What is read, top then bottom, is twice as wide.
    initial_state: zeros (an empty deque) | {copy: MEMORY.x} (the cells of another deque_memory); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DifferentialAttention(Block, word="differential_attention"):
    """Differential attention: what two softmaxes have in common, noise, cancels (Ye et al. 2024, arXiv 2410.05258).

    heads: How many heads H; twice as many divide the width that arrives. At the same D a Transformer has 2 H;
        default 8.
    lambda_init: l_0, 0 <= l_0 < 1. The paper finds 0.8 in all layers about as good as what grows with the depth;
        default 0.8.
    lambda_: constant | by_depth. Whether l_0 is `lambda_init`, or 0.8 - 0.6 exp(-0.3 n) in iteration n = 0, 1, ...
        of the innermost `repeat` around it, 0.2 in the first, as in the paper; default 'constant'.
    positions: What it knows of distances: none | rotary (Su et al. 2021), which the paper has; default 'none'.
    dropout: Probability of dropping a weight of either softmax, 0 <= dropout < 1; default 0.0.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    lambda_init: float | Var | Unset = UNSET
    lambda_: Literal["constant", "by_depth"] | Var | Unset = UNSET
    positions: Literal["none", "rotary"] | Var | Unset = UNSET
    dropout: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DiscreteStacks(Block, word="discrete_stacks"):
    """Stacks of numbers with soft actions (Joulin & Mikolov 2015, section 3.2, equations 3 to 6).

    stacks: How many stacks, each with actions of its own, 1 or more; default 10.
    depth: How many numbers are read of each, from its top, 1 to `cells`; default 2.
    cells: How many numbers a stack holds, 1 or more; what is pushed below the last one is lost; default 64.
    no_op: Whether an action is to leave a stack as it is; default True.
    rounding: none | evaluation: whether, outside training, the likeliest action alone is taken; default 'none'.
    initial_state: zeros (empty stacks) | {copy: MEMORY.x} (the stacks of another discrete_stacks); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    stacks: int | Var | Unset = field(default=UNSET, kw_only=False)
    depth: int | Var | Unset = UNSET
    cells: int | Var | Unset = UNSET
    no_op: bool | Var | Unset = UNSET
    rounding: Literal["none", "evaluation"] | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Dropout(Block, word="dropout"):
    """Dropout (Srivastava et al. 2014): each value is zero with probability `rate`, else divided by 1 - rate.

    rate: Probability of dropping, 0 <= rate < 1; `model.dropout` unless given; default 0.0.
    locked: Whether all positions of a row have one mask (Gal & Ghahramani 2016; Merity et al. 2018, section 4.2);
        each window of a text has a new one, and each position where `recurrent` runs this in its loop; default
        False.
    as_: The name of the output, for later blocks.
    """
    rate: float | Var | Unset = field(default=UNSET, kw_only=False)
    locked: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class EpisodicMemory(Block, word="episodic_memory"):
    """Episodic memory of a dynamic memory network (Kumar et al. 2016, arXiv 1506.07285, section 2.3).

    from_: The memory to read: the positions of a sequence are facts; a grid's are sentences, and its columns their
        words. The only encoder where there is one.
    query: The memory of the question: one vector (an encoder that ends with `pool`), or a sequence of words.
    hops: How often the facts are read, 1 or more; default 3.
    width: Features of c, q and m; `model.width` by default. What is as wide already is taken as it is.
    encoding: position | position_code | bag. How words become a sentence, as in `memory_network`; default
        'position'.
    gate: sigmoid | softmax. Whether gates open each by itself, or share 1 among the facts (as Xiong et al. 2016,
        arXiv 1603.01417, section 3.3); default 'sigmoid'.
    supervision: What the cross-entropy of gates and supporting facts counts in the loss of a training (alpha of
        section 2.5); 0 is without; default 1.0.
    as_: The name of the output, for later blocks.
    """
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)
    query: str | Var | Unset | None = UNSET
    hops: int | Var | Unset = UNSET
    width: int | Var | Unset | None = UNSET
    encoding: Literal["position", "position_code", "bag"] | Var | Unset = UNSET
    gate: Literal["sigmoid", "softmax"] | Var | Unset = UNSET
    supervision: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class FeedForward(Block, word="feed_forward"):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3; gated forms: Shazeer 2020).

    hidden: Inner width, after a gate; 4 times the width that arrives unless given.
    activation: What stands between the two maps; default 'relu'.
    dropout: Probability of dropping an inner unit, 0 <= dropout < 1; default 0.0.
    bias: Whether there are b_1 and b_2; default True.
    as_: The name of the output, for later blocks.
    """
    hidden: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset = UNSET
    dropout: float | Var | Unset = UNSET
    bias: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Flatten(Block, word="flatten"):
    """The cells of a grid one after another, position by position: y_(t W + w) = s[t, w].

    as_: The name of the output, for later blocks.
    """
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class GatedDeltaNet(Block, word="gated_delta_net"):
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464, equation 10); with vector decays, that of Kimi Linear.

    heads: How many heads; they divide the width that arrives, unless `head_width` is given; default 8.
    head_width: The width of a head's values; the width that arrives, divided by the heads, unless given.
    state: The width of a head's queries and keys; `head_width` unless given.
    decay: scalar | vector; default 'scalar'.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    short_conv: How many positions a depthwise convolution of q, k and v reads; in an encoder it is centred; 0 for
        none; default 4.
    negative_eigenvalues: Whether beta is between 0 and 2, in place of 0 and 1; default False.
    scale_queries: Whether q, of length 1, is divided by sqrt(state), as in the authors' code; default False.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of a
        gated_delta_net). In an encoder, of the direction that reads forwards; the other begins empty; default
        'zeros'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    decay: Literal["scalar", "vector"] | Var | Unset = UNSET
    chunk: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    negative_eigenvalues: bool | Var | Unset = UNSET
    scale_queries: bool | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class GatedLinearAttention(Block, word="gated_linear_attention"):
    """Gated linear attention (Yang et al. 2023, section 4; the layer of section 4.4).

    heads: How many heads; default 4.
    head_width: The width of a head's values; the width that arrives, divided by the heads, unless given.
    state: The width of a head's queries and keys; half of `head_width`, rounded up, unless given.
    rank: How many numbers of a position decide its decays, 1 or more; default 16.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    short_conv: How many positions a depthwise convolution of q, k and v reads, with SiLU; in an encoder it is
        centred; 0 for none; default 0.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of a
        gated_linear_attention). In an encoder, of the direction that reads forwards; default 'zeros'.
    head_norm: group | rms. What LN does: subtract each head's mean, divide by its deviation, with a gain and a
        bias; or divide by its root mean square, with a gain; default 'group'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    rank: int | Var | Unset = UNSET
    chunk: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    head_norm: Literal["group", "rms"] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Grid(Block, word="grid"):
    """The Neural GPU's mental image: the stream in column 0, zeros in all others (Kaiser & Sutskever 2016, section 2).

    columns: Columns W of the grid, 1 or more; default 4.
    max_length_ratio: How many times as long as the question the answer may be, 1 or more; 1 is no longer than it;
        default 2.0.
    as_: The name of the output, for later blocks.
    """
    columns: int | Var | Unset = field(default=UNSET, kw_only=False)
    max_length_ratio: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Highway(Block, word="highway"):
    """A highway connection (Srivastava et al. 2015, section 2) around a stack.

    stack: The blocks f; they keep the width and the length.
    as_: The name of the output, for later blocks.
    """
    stack: Stack = field(kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Identity(Block, word="identity"):
    """Identity, y = x: a branch of `parallel` that skips the others, or, with `as`, a name for what arrives here.

    as_: The name of the output, for later blocks.
    """
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LatentAttention(Block, word="latent_attention"):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).

    heads: How many heads; without `head_width` they divide the width that arrives; default 8.
    latent: The width D_c of the latent c, 2 or more; 4 times the width of a head by default, as in the paper.
    query_latent: The width of the latent z of the queries, 2 or more; without it they are made of x itself.
    head_width: The width d of each head's keys and values; by default D / heads.
    rotary_width: The width D_r of the decoupled key, an even number; 0 for none, without which positions are not
        known. By default half the width of a head, or what makes that even.
    dropout: Probability of dropping an attention weight, 0 <= dropout < 1; default 0.0.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    latent: int | Var | Unset | None = UNSET
    query_latent: int | Var | Unset | None = UNSET
    head_width: int | Var | Unset | None = UNSET
    rotary_width: int | Var | Unset | None = UNSET
    dropout: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Linear(Block, word="linear"):
    """A linear map: y = f(W x + b). With glu, swiglu and geglu W is twice as wide and one half gates the other.

    width: The width that comes out; `model.width` unless given.
    activation: What is applied to the result; default 'none'.
    bias: Whether there is a bias b; default True.
    weight_norm: Whether each row of W is a gain times a direction, g v / |v| (Salimans & Kingma 2016, equation 2),
        and normal at first, of variance 1 / D for the D features that arrive (Gehring et al. 2017, section 3.5);
        default False.
    init_scale: What the initial weights are multiplied by, above 0: sqrt(1 - p) after a dropout of p (there too);
        default 1.0.
    as_: The name of the output, for later blocks.
    """
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset = UNSET
    bias: bool | Var | Unset = UNSET
    weight_norm: bool | Var | Unset = UNSET
    init_scale: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearAttention(Block, word="linear_attention"):
    """Linear attention (Katharopoulos et al. 2020, equations 7, 16 to 20), phi(x) = elu(x) + 1.

    heads: How many heads; they divide the width that arrives, unless `head_width` is given; default 8.
    head_width: The width of a head's values; the width that arrives, divided by the heads, unless given.
    state: The width of a head's queries and keys; `head_width` unless given.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    short_conv: How many positions a depthwise convolution of q, k and v reads, with SiLU; in an encoder it is
        centred; 0 for none; default 0.
    initial_state: zeros | learned | a memory (its mean, projected to S and z, z by magnitude) | {copy: MEMORY.x}
        (the last state of a linear_attention); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LongConv(Block, word="long_conv"):
    """Long convolution of each feature by a sum of exponentials (S4D: Gu et al. 2022, arXiv 2206.11893, section 3).

    state: How wide the state of each feature is, twice the number of exponentials; even, 2 or more; default 64.
    initial_state: zeros | learned | a memory (its mean, projected, as the input before the first position) | {copy:
        MEMORY.x} (the last state of a long_conv); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    state: int | Var | Unset = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Mamba(Block, word="mamba"):
    """Selective state space (S6) between two projections, with a gate (Gu & Dao 2023, arXiv 2312.00752, figure 3).

    state: How wide the state of each feature is, 1 or more; default 16.
    expansion: How many times as wide as what arrives it is inside, 1 or more; default 2.
    short_conv: How many positions a convolution before the state space reads, itself included; 0 for none; default
        4.
    initial_state: zeros | learned | a memory (its mean, projected: h_0 = q p^T) | {copy: MEMORY.x} (the last state
        of a mamba); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    state: int | Var | Unset = field(default=UNSET, kw_only=False)
    expansion: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Mamba2(Block, word="mamba2"):
    """Mamba-2: linear attention whose decays depend on what is read (Dao & Gu 2024, section 7.1, and their code).

    heads: How many heads; so many that all values together are twice as wide as the input, unless given.
    head_width: The width of a head's values x, 1 or more; default 64.
    state: The width of B and C; default 128.
    groups: How many groups of heads there are; they divide the heads; default 1.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    short_conv: How many positions of x, B and C the convolution reads, centred in an encoder; 0 for none, and no
        SiLU; default 4.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of a mamba2).
        In an encoder, of the direction that reads forwards; default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset = UNSET
    state: int | Var | Unset = UNSET
    groups: int | Var | Unset = UNSET
    chunk: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Maxout(Block, word="maxout"):
    """Maxout (Goodfellow et al. 2013, section 3; after a decoder: Bahdanau et al. 2015, appendix A.2.2).

    pieces: How many linear maps, 1 or more; default 2.
    width: The width that comes out; `model.width` unless given.
    as_: The name of the output, for later blocks.
    """
    pieces: int | Var | Unset = field(default=UNSET, kw_only=False)
    width: int | Var | Unset | None = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryNetwork(Block, word="memory_network"):
    """End-to-end memory network (Sukhbaatar et al. 2015, sections 2 and 4.1), over sentences of words.

    from_: The memory to read: a grid's positions are sentences and its columns their words; the positions of a
        sequence are sentences of one word. The only encoder where there is one.
    query: The memory whose words are the question, a sequence; all positions then get the same answer, and the
        stream is not read. Without it each position of the stream asks, x_t B.
    hops: How often the memory is read, 1 or more; default 3.
    width: Features of u; `model.width` by default.
    tying: adjacent: A of a hop is C of the hop before, and B is the first A where the words of both are equally
        wide. layer_wise: all hops have the same A and C, and u_(k+1) = H u_k + o_k; default 'adjacent'.
    encoding: position | position_code | bag. l as above; as in the authors' code, about twice as large, l_kj = 1 +
        4 (k - (d + 1) / 2) (j - (J + 1) / 2) / (d J) with one J for sentences and question, the room for words and
        one more for T(i), which is weighted as the last word; or 1; default 'position'.
    time: For how many sentences back T has a row, those before share the last; 0 is without T; default 50.
    noise: In training up to this share of empty sentences is put between the others in T, 0 <= noise < 1; default
        0.1.
    linear_start: The share of the training, 0 to 1, in which p has no softmax; default 0.0.
    slots: How many sentences the softmax has before it at least, the missing ones empty, u.0 = 0 (the authors' code
        has 50): a hop may then read next to nothing. 0 is none but the story's own; default 0.
    answer: state | words. What leaves: the last u, or u C of the last hop's C, a score for each word where words
        are `one_hot`; with the output `identity` this is the paper's tie of the output to C; default 'state'.
    as_: The name of the output, for later blocks.
    """
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)
    query: str | Var | Unset | None = UNSET
    hops: int | Var | Unset = UNSET
    width: int | Var | Unset | None = UNSET
    tying: Literal["adjacent", "layer_wise"] | Var | Unset = UNSET
    encoding: Literal["position", "position_code", "bag"] | Var | Unset = UNSET
    time: int | Var | Unset = UNSET
    noise: float | Var | Unset = UNSET
    linear_start: float | Var | Unset = UNSET
    slots: int | Var | Unset = UNSET
    answer: Literal["state", "words"] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MixtureOfExperts(Block, word="mixture_of_experts"):
    """Experts chosen for each position (Shazeer et al. 2017, arXiv 1701.06538), some shared by all (Dai et al. 2024,
    arXiv 2401.06066), with loads balanced by a bias and not by the loss (Wang et al. 2024, arXiv 2408.15664).

    stack: The blocks of an expert, which read each position alone, as `feed_forward`; they keep the length and the
        kind of the stream. Names given inside cannot be read outside.
    experts: How many experts there are to choose from; a step takes the FLOPs of all of them; default 8.
    top_k: How many of them a position uses, at most `experts`; default 2.
    shared: How many experts there are beside these, which every position uses; default 0.
    balance_rate: What a bias changes by after a training step, 0 or more; 0 for none; default 0.001.
    normalise: Whether the weights g of the chosen experts are divided by their sum; default False.
    as_: The name of the output, for later blocks.
    """
    stack: Stack = field(kw_only=False)
    experts: int | Var | Unset = UNSET
    top_k: int | Var | Unset = UNSET
    shared: int | Var | Unset = UNSET
    balance_rate: float | Var | Unset = UNSET
    normalise: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Mlstm(Block, word="mlstm"):
    """The mLSTM of xLSTM: a matrix for a memory, with exponential gates (Beck et al. 2024, equations 15 and 19 to 27).

    heads: How many heads; default 4.
    head_width: The width of a head's values; the width that arrives, divided by the heads, unless given.
    state: The width of a head's queries and keys; `head_width` unless given.
    forget_gate: sigmoid | exp; default 'sigmoid'.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    short_conv: How many positions of x a depthwise convolution with SiLU reads, of which then q and k are made
        (figure 10); 0 for none; default 4.
    initial_state: zeros | learned | a memory (its mean, projected to C and n) | {copy: MEMORY.x} (the last state of
        an mlstm). In an encoder, of the direction that reads forwards; default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    forget_gate: Literal["sigmoid", "exp"] | Var | Unset = UNSET
    chunk: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Multiply(Block, word="multiply"):
    """The stream and named outputs, multiplied value by value: y_t = x_t * a_t * b_t ...

    of: One name or several. An output with one position for all, such as a `pool`'s, is seen at every position.
    as_: The name of the output, for later blocks.
    """
    of: str | Sequence[str | Var] | Var = field(kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class NoInput(Block, word="no_input"):
    """Zeros in place of the stream: y_t = 0.

    width: The width that comes out, `model.width` unless given.
    as_: The name of the output, for later blocks.
    """
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Norm(Block, word="norm"):
    """Layer normalisation (Ba et al. 2016) or root-mean-square normalisation (Zhang & Sennrich 2019).

    kind: layer | rms; default 'layer'.
    eps: What is added under the root, above 0; 1e-6 in Llama 2 and Qwen; default 1e-05.
    as_: The name of the output, for later blocks.
    """
    kind: Literal["layer", "rms"] | Var | Unset = field(default=UNSET, kw_only=False)
    eps: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Nram(Block, word="nram"):
    """A machine that runs on a tape, each step wired by a controller (Kurach et al. 2016, sections 3 and 4).

    steps: Steps at most, 2 to 10000; default 10.
    registers: Registers, each an integer; default 4.
    hidden: Units of the controller's hidden layers, tanh; default 64.
    layers: Hidden layers of the controller; default 1.
    entropy: Times the mean entropy of the choices in nats, which is taken off the training loss; it falls to 0 in
        the course of the training (section 4); default 0.0.
    as_: The name of the output, for later blocks.
    """
    steps: int | Var | Unset = field(default=UNSET, kw_only=False)
    registers: int | Var | Unset = UNSET
    hidden: int | Var | Unset = UNSET
    layers: int | Var | Unset = UNSET
    entropy: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Ntm(Block, word="ntm"):
    """Heads that write and read a memory of slots (Graves, Wayne & Danihelka 2014, sections 3.1 to 3.3).

    slots: How many slots the memory has, 1 or more; default 128.
    slot_width: How many numbers a slot holds; default 20.
    read_heads: How many heads read; default 1.
    write_heads: How many heads write; default 1.
    order: When the reading heads read: write_read, what the step has written, at places found before; read_write,
        what was there before it; write_address_read, what it has written, at places that they find there. Other
        implementations have one of the last two: that of their list of heads; default 'write_read'.
    shift: How many slots a head may move in one step, either way; fewer than half of the slots. 0 for none; default
        1.
    memory: What the memory holds at first: constant (1e-6 everywhere), learned (from there), or random (drawn once,
        uniform within 1 / sqrt(slots + slot_width)); default 'constant'.
    initial_state: zeros (every head at slot 0, and what it reads there) | learned (from near there) | a memory (its
        mean, projected) | {copy: MEMORY.x} (the memory, the heads' places and what they read, of another ntm);
        default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    slots: int | Var | Unset = field(default=UNSET, kw_only=False)
    slot_width: int | Var | Unset = UNSET
    read_heads: int | Var | Unset = UNSET
    write_heads: int | Var | Unset = UNSET
    order: Literal["write_read", "read_write", "write_address_read"] | Var | Unset = UNSET
    shift: int | Var | Unset = UNSET
    memory: Literal["constant", "learned", "random"] | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Parallel(Block, word="parallel"):
    """Several stacks over the same stream, merged (the columns of an encoder: Chen et al. 2018, section 5).

    branches: Stacks by name, or a list of unnamed ones. They do not see each other; after the merge the output of a
        named one can be read by its name, and so can the names in it.
    merge: sum | mean | concat | gate | max | attention. All but concat need branches of one width; default 'sum'.
    as_: The name of the output, for later blocks.
    """
    branches: Sequence[Stack] | Mapping[str, Stack] = field(kw_only=False)
    merge: Literal["sum", "mean", "concat", "gate", "max", "attention"] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Patches(Block, word="patches"):
    """Patches of a grid, which do not overlap, each as a vector (ViT: Dosovitskiy et al. 2021, section 3.1).

    size: Positions, then columns, of a patch; at most as many columns as arrive.
    width: The width that comes out; `model.width` unless given.
    as_: The name of the output, for later blocks.
    """
    size: Sequence[int | Var] | Var = field(kw_only=False)
    width: int | Var | Unset | None = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Pool(Block, word="pool"):
    """One vector for all positions of a row; a row without tokens gives zeros.

    how: last | mean | max | attention; default 'last'.
    as_: The name of the output, for later blocks.
    """
    how: Literal["last", "mean", "max", "attention"] | Var | Unset = field(default=UNSET, kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Pool2d(Block, word="pool2d"):
    """The maximum or the mean of each window of a grid, over the cells that are real.

    how: max | mean; default 'max'.
    size: Positions, then columns, of a window; more than one cell, and at most as many columns as arrive; default
        [2, 2].
    stride: Distances between two windows, at most their size, which it is unless given.
    as_: The name of the output, for later blocks.
    """
    how: Literal["max", "mean"] | Var | Unset = field(default=UNSET, kw_only=False)
    size: Sequence[int | Var] | Var | Unset = UNSET
    stride: Sequence[int | Var] | Var | Unset | None = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PoolHierarchical(Block, word="pool_hierarchical"):
    """The convolutional sentence model (Kalchbrenner & Blunsom 2013, section 3.1), over each feature on its own.

    max_length: Tokens of the longest row for which each layer has a kernel of its own, 1 or more; default 256.
    activation: What is applied after each convolution; default 'tanh'.
    as_: The name of the output, for later blocks.
    """
    max_length: int | Var | Unset = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "silu", "tanh", "sigmoid"] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Positions(Block, word="positions"):
    """Position embeddings, sinusoidal (Vaswani et al. 2017, section 3.5) or learned (Gehring et al. 2017, section
    3.1).

    kind: sinusoidal | learned; default 'sinusoidal'.
    max_length: Rows of the learned table, 512 by default; later positions share the last row. Columns of a grid
        have a table of their own.
    per_iteration: Whether the innermost `repeat` around it counts too, from 0; default False.
    as_: The name of the output, for later blocks.
    """
    kind: Literal["sinusoidal", "learned"] | Var | Unset = field(default=UNSET, kw_only=False)
    max_length: int | Var | Unset | None = UNSET
    per_iteration: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Pyramid(Block, word="pyramid"):
    """Neighbouring positions side by side: y_t = [x_(2 t); x_(2 t + 1)] (Listen, Attend and Spell: Chan et al. 2016).

    factor: How many positions become one, 2 or more; default 2.
    as_: The name of the output, for later blocks.
    """
    factor: int | Var | Unset = field(default=UNSET, kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class QueueMemory(Block, word="queue_memory"):
    """A continuous queue (Grefenstette et al. 2015, section 3.2, equations 4 and 5).

    width: The width of a value, and of what is read; `model.width` unless given.
    initial_state: zeros (an empty queue) | {copy: MEMORY.x} (the cells of another queue_memory); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Read(Block, word="read"):
    """A named output in place of the stream: y_t = a_t.

    of: The name. An output with one position for all, such as a `pool`'s, is seen at every position.
    as_: The name of the output, for later blocks.
    """
    of: str | Var = field(kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Recurrent(Block, word="recurrent"):
    """Feedback through any stack: in it, `prev.x` is the output named x one step before (input feeding: Luong et al.
    2015, section 3.3; attention asked by the last state: Bahdanau et al. 2015, section 3.1).

    stack: The blocks. `input` is what entered; x is this position's and `prev.x` the one before, at the first
        position what its block starts from (an rnn's initial state), else zeros.
    as_: The name of the output, for later blocks.
    """
    stack: Stack = field(kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Repeat(Block, word="repeat"):
    """The same stack `times` times, each with parameters of its own, or all with the same (Dehghani et al. 2019).

    times: How often, 1 or more, or `length`.
    stack: The blocks. A name given inside is this iteration's, and afterwards the last one's.
    share: Whether all iterations use the same parameters; the stack then keeps the width and the length; default
        False.
    relaxation: Sets of shared parameters that training draws together into one (Kaiser & Sutskever 2016, section
        4).
    recompute: Whether a step's inner values are computed again for the gradients, which takes more time and less
        memory; default False.
    as_: The name of the output, for later blocks.
    """
    times: int | Literal["length"] | Var
    stack: Stack
    share: bool | Var | Unset = UNSET
    relaxation: Mapping[str, Any] | Unset | None = UNSET
    recompute: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Residual(Block, word="residual"):
    """A residual connection (He et al. 2016) around a stack, with the norm before or after it.

    stack: The blocks f; they keep the width and the length.
    norm: Where layer normalisation stands: none | pre | post; default 'none'.
    scale: What the sum is multiplied by, above 0; sqrt(0.5) = 0.7071 in Gehring et al. 2017; default 1.0.
    dropout: Probability of dropping a value that the stack adds, 0 <= dropout < 1; default 0.0.
    as_: The name of the output, for later blocks.
    """
    stack: Stack = field(kw_only=False)
    norm: Literal["none", "pre", "post"] | Var | Unset = UNSET
    scale: float | Var | Unset = UNSET
    dropout: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Retention(Block, word="retention"):
    """Multi-scale retention (Sun et al. 2023, equations 5, 6 and 8; sections 2.1 and 2.2).

    heads: How many heads; they divide the width that arrives, unless `head_width` and `state` are given; default 8.
    head_width: The width of a head's values; twice the width that arrives, divided by the heads, unless given.
    state: The width of a head's queries and keys, even; the width that arrives, divided by the heads, unless given.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    short_conv: How many positions a depthwise convolution of q, k and v reads, with SiLU; in an encoder it is
        centred; 0 for none; default 0.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of a
        retention). In an encoder, of the direction that reads forwards; default 'zeros'.
    head_norm: group | rms. What GN does: subtract each head's mean, divide by its deviation, with a gain and a
        bias; or divide by its root mean square, with a gain; default 'group'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset = UNSET
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    head_norm: Literal["group", "rms"] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Reverse(Block, word="reverse"):
    """Reverses the positions of each row: before an rnn, it then reads a source from right to left.

    as_: The name of the output, for later blocks.
    """
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RgLru(Block, word="rg_lru"):
    """Real-gated linear recurrent unit (De et al. 2024, arXiv 2402.19427, section 2.4).

    heads: How many blocks the matrices of the gates have on their diagonals; they divide the width that arrives. 1
        is dense; the paper's models have 16 (section 4.1); default 1.
    short_conv: How many positions a depthwise convolution before the layer reads, itself included, 4 in Griffin; 0
        for none; default 0.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of a rg_lru);
        default 'zeros'.
    first: scaled | plain. Whether the input of a row's first position, in an encoder also that of its last in the
        layer that begins there, is multiplied by sqrt(1 - a^2) as all others are; default 'scaled'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    first: Literal["scaled", "plain"] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Rnn(Block, word="rnn"):
    """Recurrent layers: LSTM (Hochreiter & Schmidhuber 1997), GRU (Cho et al. 2014, section 2.3), tanh (Elman 1990),
    or minGRU (Feng et al. 2024, arXiv 2410.01201, section 3.1).

    cell: lstm | gru | tanh | min_gru; default 'lstm'.
    width: The width that comes out, `model.width` unless given; each direction of a bidirectional rnn has half.
    layers: How many layers, 1 or more; default 1.
    bidirectional: Whether a second network reads each row from its end; in an encoder only; default False.
    reset: Of a gru, whether its reset gate comes before the matrix product (as published) or after it (fused);
        default 'before'.
    projection: Of an lstm (Sak et al. 2014), the width that comes out, below `width`, which is then the cells' own.
    norm: none | gates: layer normalisation of each gate; a loop over the positions, slower than the fused kernels;
        default 'none'.
    output_activation: tanh | none: what an lstm with `norm: gates` applies to c' before its output gate; default
        'tanh'.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of an rnn);
        default 'zeros'.
    dropout: Probability of dropping a value between two layers, 0 <= dropout < 1; default 0.0.
    locked: Whether that dropout has one mask for all positions of a row, as the block `dropout` with `locked`;
        default False.
    weight_dropout: Probability of dropping a weight between two positions, 0 <= weight_dropout < 1 (Merity et al.
        2018, section 2): one mask for a batch or a window, and for each position in the loop of `recurrent`;
        default 0.0.
    as_: The name of the output, for later blocks.
    """
    cell: Literal["lstm", "gru", "tanh", "min_gru"] | Var | Unset = field(default=UNSET, kw_only=False)
    width: int | Var | Unset | None = UNSET
    layers: int | Var | Unset = UNSET
    bidirectional: bool | Var | Unset = UNSET
    reset: Literal["before", "after"] | Var | Unset = UNSET
    projection: int | Var | Unset | None = UNSET
    norm: Literal["none", "gates"] | Var | Unset = UNSET
    output_activation: Literal["tanh", "none"] | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    dropout: float | Var | Unset = UNSET
    locked: bool | Var | Unset = UNSET
    weight_dropout: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RnnCell(Block, word="rnn_cell"):
    """A recurrent cell that goes on from a named output, where `rnn` goes on from its own last state.

    state: The name of what the cell goes on from, as `prev.state`.
    cell: gru | tanh; default 'gru'.
    reset: Of a gru, whether its reset gate comes before the matrix product (as published) or after it (fused);
        default 'before'.
    width: The width of both states; that of `state` unless given, which `prev.x` may need to be known.
    initial_state: What `prev` of this block's name reads at the first position: zeros | learned | a memory (its
        mean, projected); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    state: str | Var = field(kw_only=False)
    cell: Literal["gru", "tanh"] | Var | Unset = UNSET
    reset: Literal["before", "after"] | Var | Unset = UNSET
    width: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Rows(Block, word="rows"):
    """Each position of a grid as a sequence of its own: y[t] = f(s[t, 0], s[t, 1] ...), with the same stack f for all.

    stack: The blocks; a row of W positions arrives. What has a name outside cannot be read in it, nor what has one
        in it outside; `input` is the row, and every row can read the memories of encoders.
    as_: The name of the output, for later blocks.
    """
    stack: Stack = field(kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Rwkv7(Block, word="rwkv7"):
    """Time mixing of RWKV-7 (Peng et al. 2025, arXiv 2503.14456, section 4.1), of one layer.

    heads: How many heads; they divide the width that arrives, unless `head_width` is given; default 8.
    head_width: The width of a head; the width that arrives, divided by the heads, unless given. 2 or more.
    rank: That of f_w, f_a, and of the gate; default 32.
    chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory alone; default 64.
    initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last state of an rwkv7).
        In an encoder, of the direction that reads forwards; the other begins empty; default 'zeros'.
    value_residual: Whether the values of the first rwkv7 that has it, in the same encoder or decoder, are mixed
        into those of the others that have it. A `repeat` whose iterations share their parameters counts as one;
        default False.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    rank: int | Var | Unset = UNSET
    chunk: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    value_residual: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Scale(Block, word="scale"):
    """The stream times a number: y = factor x, and dL/dx = (gradient / readers) dL/dy, whatever the factor.

    factor: What the stream is multiplied by, above 0; default 1.0.
    gradient: What the gradient is multiplied by, above 0; by default the factor.
    readers: What the gradient is divided by: how many blocks read the result; default 1.
    as_: The name of the output, for later blocks.
    """
    factor: float | Var | Unset = field(default=UNSET, kw_only=False)
    gradient: float | Var | Unset | None = UNSET
    readers: int | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SelectColumn(Block, word="select_column"):
    """One column of a grid: y_t = s[t, index] (what the Neural GPU's outputs are read from), 0 where no cell is real.

    index: Which column, from 0; default 0.
    as_: The name of the output, for later blocks.
    """
    index: int | Var | Unset = field(default=UNSET, kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SelfAttention(Block, word="self_attention"):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2).

    heads: How many heads; without `head_width` they divide the width that arrives; default 8.
    dropout: Probability of dropping an attention weight, 0 <= dropout < 1; default 0.0.
    window: How far it sees: the position itself and the window - 1 before it (in an encoder, after it too). Without
        it, everything; with it, decoding keeps a state of fixed size.
    positions: What it knows of distances: none | relative | rotary | transformer_xl | alibi; default 'none'.
    max_distance: Of `relative` positions, from where on all distances are one, 1 or more; 16 by default.
    bias: What has biases: all | none | qkv; true for q, k, v and y, as `all`, false for none; default True.
    kv_heads: How many heads of keys and values there are, each for heads / kv_heads heads of queries; they divide
        `heads` (grouped-query attention: Ainslie et al. 2023, arXiv 2305.13245; 1: multi-query attention, Shazeer
        2019, arXiv 1911.02150). As many as `heads` by default.
    head_width: The width d of a head; the width that arrives, divided by the heads, unless given.
    rotary: How rotary positions turn queries and keys.
    qk_norm: Whether q and k of each head are normalised, before they are turned: g q / sqrt(mean(q^2) + 1e-5), with
        a g of each feature that all heads share, one for q and one for k. So Dehghani et al. 2023 (arXiv
        2302.05442, section 2), with the root mean square in place of layer normalisation; Henry et al. 2020 (arXiv
        2010.04245) have one g in place of 1/sqrt(D/H); default False.
    soft_cap: The bound c of the scores, above 0: c tanh(score / c) (Gemma Team 2024, arXiv 2408.00118, section 2),
        before alibi is added.
    sinks: Whether each head has a learned score of reading nothing, in the denominator of its softmax (OpenAI 2025,
        arXiv 2508.10925); default False.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    dropout: float | Var | Unset = UNSET
    window: int | Var | Unset | None = UNSET
    positions: Literal["none", "relative", "rotary", "transformer_xl", "alibi"] | Var | Unset = UNSET
    max_distance: int | Var | Unset | None = UNSET
    bias: Literal["all", "none", "qkv"] | bool | Var | Unset = UNSET
    kv_heads: int | Var | Unset | None = UNSET
    head_width: int | Var | Unset | None = UNSET
    rotary: Mapping[str, Any] | Unset | None = UNSET
    qk_norm: bool | Var | Unset = UNSET
    soft_cap: float | Var | Unset | None = UNSET
    sinks: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Slstm(Block, word="slstm"):
    """The sLSTM (Beck et al. 2024, arXiv 2405.04517, section 2.2), a loop over the positions: its gates read h.

    heads: How many heads; they divide the width that arrives, into two features or more; default 4.
    short_conv: How many positions the convolution before two of the gates reads, itself included; 0 for none;
        default 4.
    initial_state: zeros | learned | a memory (its mean, projected to h and c, with n = 1 and m = 0) | {copy:
        MEMORY.x} (the last state of a slstm); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    heads: int | Var | Unset = field(default=UNSET, kw_only=False)
    short_conv: int | Var | Unset = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SourceState(Block, word="source_state"):
    """A memory's states in place of the stream, one for each position (as Kaiser & Bengio 2016 read the Neural GPU's).

    from_: The memory to read: an encoder's name, or `encoder.x` for its output named x. The only encoder where
        there is one; with two it must be given.
    as_: The name of the output, for later blocks.
    """
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SplitColumns(Block, word="split_columns"):
    """The features of each position in N equal parts, the columns of a grid: [s[t, 0]; s[t, 1]; ...] = x_t.

    columns: Columns N of the grid, 1 or more; they divide the width.
    as_: The name of the output, for later blocks.
    """
    columns: int | Var = field(kw_only=False)
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class StackMemory(Block, word="stack_memory"):
    """A continuous stack (Grefenstette et al. 2015, section 3.1, equations 1 to 3).

    width: The width of a value, and of what is read; `model.width` unless given.
    initial_state: zeros (an empty stack) | {copy: MEMORY.x} (the cells of another stack_memory); default 'zeros'.
    as_: The name of the output, for later blocks.
    """
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SumColumns(Block, word="sum_columns"):
    """The columns of a grid, summed: y_t = sum_w s[t, w] over the cells that are real.

    as_: The name of the output, for later blocks.
    """
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SupportingFacts(Block, word="supporting_facts"):
    """Memory network with supervised facts (Weston et al. 2015, arXiv 1410.3916, sections 3.1 and 3.4).

    from_: The memory to read: a grid's positions are sentences and its columns their words; the positions of a
        sequence are sentences of one word.
    query: The memory whose words are the question, a sequence.
    hops: How many facts are found, 1 or more; default 1.
    width: Features of U and of R; `model.width` by default.
    encoding: position | position_code | bag. How the place of a word counts, as in `memory_network`; default 'bag'.
    margin: By how much a fact is to be preferred, above 0; default 0.1.
    as_: The name of the output, for later blocks.
    """
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)
    query: str | Var | Unset | None = UNSET
    hops: int | Var | Unset = UNSET
    width: int | Var | Unset | None = UNSET
    encoding: Literal["position", "position_code", "bag"] | Var | Unset = UNSET
    margin: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Use(Block, word="use"):
    """A stack written once under `model.stacks`; all its uses share their parameters unless they are copies.

    stack: The stack's name under `model.stacks`.
    copy: Whether this use has parameters of its own; default False.
    as_: The name of the output, for later blocks.
    """
    stack: str | Var = field(kw_only=False)
    copy: bool | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class WindowMemory(Block, word="window_memory"):
    """End-to-end memory network as a language model (Sukhbaatar et al. 2015, section 5), tied layer-wise.

    hops: How often the memory is read, 1 or more; default 6.
    window: How many positions it has: the position itself and the window - 1 before it, 2 or more; default 100.
    width: Features of u; `model.width` by default.
    relu: The share of the features that are rectified, 0 to 1; default 0.5.
    as_: The name of the output, for later blocks.
    """
    hops: int | Var | Unset = field(default=UNSET, kw_only=False)
    window: int | Var | Unset = UNSET
    width: int | Var | Unset | None = UNSET
    relu: float | Var | Unset = UNSET
    as_: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class TextData(RecipeObject):
    """Text without a source, for language models: files looked up under `--data`, then beside the recipe.

    train: Training text.
    val: Text for validation scores and the choice of the checkpoint. An integer holds out that many documents of
        the training text.
    test: Text for `evaluate`; an integer as for `val`.
    hold_out: spread | end: whether the documents that are held out are spread evenly over all files, or are the
        last ones, those of `test` after those of `val`; default 'spread'.
    unit: line | paragraph | file: what a document is; its end is a token. Blank lines stand between paragraphs.
        Every line of JSON lines and every row of Parquet is a document, whatever stands here; default 'line'.
    column: The key of JSON lines, or the column of Parquet, with the text; `a.b` is b inside of a; default 'text'.
    """
    train: str | Sequence[str | WeightedFile | Mapping[str, Any] | Var] | Mapping[str, str | WeightedFile | Mapping[str, Any] | Var] | Var
    val: str | Sequence[str | WeightedFile | Mapping[str, Any] | Var] | Mapping[str, str | WeightedFile | Mapping[str, Any] | Var] | int | Var | Unset | None = UNSET
    test: str | Sequence[str | WeightedFile | Mapping[str, Any] | Var] | Mapping[str, str | WeightedFile | Mapping[str, Any] | Var] | int | Var | Unset | None = UNSET
    hold_out: Literal["spread", "end"] | Var | Unset = UNSET
    unit: Literal["line", "paragraph", "file"] | Var | Unset = UNSET
    column: str | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Ctc(RecipeObject):
    """CTC over the positions that an encoder leaves, beside the decoder or alone (Graves et al. 2006). Its answers
    have no more tokens than these positions.

    from_: The memory whose positions are the frames: an encoder's name, or `encoder.x` for its output named x.
    weight: w, above 0 and at most 1. With 1 CTC is alone, and there is no `decoder`; default 0.3.
    """
    from_: str | Var | Unset | None = UNSET
    weight: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Curriculum(RecipeObject):
    """Short pairs first: an epoch has those of at most so many tokens, its level, which rises as they are mastered.

    start: The level of the first two epochs; tokens of a pair, eos not counted; default 6.
    step: How much the level rises after an epoch that was mastered; each level lasts two epochs or more; default 1.
    error: Raise the level when the error rate on the longest pairs within it (its last `step` lengths) is below
        this; above 0, at most 1; default 0.15.
    beyond: The probability, 0 to 1, with which an epoch has a pair that is longer than its level; default 0.2.
    by: Whose tokens count: `source`, `target` or an encoder's name; without it the longest of a pair's sources.
    """
    start: int | Var | Unset = UNSET
    step: int | Var | Unset = UNSET
    error: float | Var | Unset = UNSET
    beyond: float | Var | Unset = UNSET
    by: str | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Data(RecipeObject):
    """What is trained on: exactly one of `parallel`, `table`, `text`, `hub`, `generate` and `babi`.

    parallel: Pairs of texts from files, looked up under `--data`, then beside the recipe.
    table: Pairs from tables (TSV, CSV, JSON lines, Parquet) whose columns are text, images, sounds or vectors.
    text: Text without a source, for language models: files looked up under `--data`, then beside the recipe.
    hub: Pairs of texts from a data set of the Hugging Face hub, or a folder in its form.
    generate: A generated task; needs no files.
    babi: Stories with questions, in the files of the bAbI tasks (Weston et al. 2015).
    tokenizer: How a text becomes tokens; trained on the training part, once, and kept in the run folder; default
        'word'.
    max_length: Training pairs with more tokens on either side are left out and counted; test lines never are, nor
        are stories; default 256.
    lowercase: Whether all text is made lower case first, as Unicode does for every language alike: a Turkish I
        becomes i with its dot. References keep their case, and answers cannot match it; default False.
    packing: Whether the pairs of a training batch stand in one row, one behind the other, without padding; what is
        learned is the same; default False.
    """
    parallel: ParallelData | Mapping[str, Any] | Unset | None = UNSET
    table: Table | Mapping[str, Any] | Unset | None = UNSET
    text: TextData | Mapping[str, Any] | Unset | None = UNSET
    hub: HubData | Mapping[str, Any] | Unset | None = UNSET
    generate: AnyTask | Unset | None = UNSET
    babi: BabiData | Mapping[str, Any] | Unset | None = UNSET
    tokenizer: AnyTokenizer | Unset | None = UNSET
    max_length: int | Var | Unset | None = UNSET
    lowercase: bool | Var | Unset | None = UNSET
    packing: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Beam(Decoder, word="beam"):
    """Beam search with a length penalty (Wu et al. 2016, section 7).

    size: hypotheses side by side; 1 is greedy search; default 5.
    length_penalty: exponent of ((5 + n) / 6); 0 ranks by the sum of log p, more favours longer answers; default
        0.6.
    ctc_weight: of log p of CTC beside that of the decoder, in place of `model.output.ctc.weight`; 0 is the decoder
        alone.
    no_repeat_ngram: no n-gram of this many tokens occurs twice in an answer, its forced prefix included.
    precision: what is computed with: bfloat16, or int8 weights on a CPU, where the processor multiplies them
        faster; default 'float32'.
    max_length: tokens of an answer at most, eos included; a longer one is cut; default 512.
    max_ratio: tokens of an answer at most for each token of its source, beside 50 that are always allowed; default
        3.0.
    """
    size: int | Var | Unset = field(default=UNSET, kw_only=False)
    length_penalty: float | Var | Unset = UNSET
    ctc_weight: float | Var | Unset | None = UNSET
    no_repeat_ngram: int | Var | Unset | None = UNSET
    precision: Literal["float32", "bfloat16", "int8"] | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    max_ratio: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Greedy(Decoder, word="greedy"):
    """Greedy search: choose the most probable token at every position.

    ctc_weight: of log p of CTC beside that of the decoder, in place of `model.output.ctc.weight`; 0 is the decoder
        alone.
    no_repeat_ngram: no n-gram of this many tokens occurs twice in an answer, its forced prefix included.
    precision: what is computed with: bfloat16, or int8 weights on a CPU, where the processor multiplies them
        faster; default 'float32'.
    max_length: tokens of an answer at most, eos included; a longer one is cut; default 512.
    max_ratio: tokens of an answer at most for each token of its source, beside 50 that are always allowed; default
        3.0.
    """
    ctc_weight: float | Var | Unset | None = field(default=UNSET, kw_only=False)
    no_repeat_ngram: int | Var | Unset | None = UNSET
    precision: Literal["float32", "bfloat16", "int8"] | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    max_ratio: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Mbr(Decoder, word="mbr"):
    """Minimum Bayes risk: the sample with the highest mean score against all samples (Eikema & Aziz 2020, section 5).

    samples: samples of each row, which are candidates and references at once; the time grows with their square;
        default 16.
    metric: sacreBLEU's score of a sentence by which they are compared; bleu is for words with spaces between;
        default 'chrf'.
    temperature: what the logits are divided by, above 0; the lower, the more probable the tokens; default 1.0.
    top_p: draw among the fewest most probable tokens that have this much together (Holtzman et al. 2020).
    seed: where the random numbers start; default 1.
    no_repeat_ngram: no n-gram of this many tokens occurs twice in an answer, its forced prefix included.
    precision: what is computed with: bfloat16, or int8 weights on a CPU, where the processor multiplies them
        faster; default 'float32'.
    max_length: tokens of an answer at most, eos included; a longer one is cut; default 512.
    max_ratio: tokens of an answer at most for each token of its source, beside 50 that are always allowed; default
        3.0.
    """
    samples: int | Var | Unset = field(default=UNSET, kw_only=False)
    metric: Literal["chrf", "bleu"] | Var | Unset = UNSET
    temperature: float | Var | Unset = UNSET
    top_p: float | Var | Unset | None = UNSET
    seed: int | Var | Unset = UNSET
    no_repeat_ngram: int | Var | Unset | None = UNSET
    precision: Literal["float32", "bfloat16", "int8"] | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    max_ratio: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Sample(Decoder, word="sample"):
    """Sample tokens by their probability. A row's answers depend on the seed and its number, not on its batch.

    temperature: what the logits are divided by, above 0; the lower, the more probable the tokens; default 1.0.
    top_k: draw among this many most probable tokens only (Fan et al. 2018).
    top_p: draw among the fewest most probable tokens that have this much together (Holtzman et al. 2020).
    min_p: draw among the tokens with at least this share of the highest probability (Nguyen et al. 2024).
    repetition_penalty: what the logit of a token that the prompt or the answer has already is divided by where it
        is positive, and multiplied with where it is negative (Keskar et al. 2019, section 4.1); default 1.0.
    seed: where the random numbers start; default 1.
    no_repeat_ngram: no n-gram of this many tokens occurs twice in an answer, its forced prefix included.
    precision: what is computed with: bfloat16, or int8 weights on a CPU, where the processor multiplies them
        faster; default 'float32'.
    max_length: tokens of an answer at most, eos included; a longer one is cut; default 512.
    max_ratio: tokens of an answer at most for each token of its source, beside 50 that are always allowed; default
        3.0.
    """
    temperature: float | Var | Unset = field(default=UNSET, kw_only=False)
    top_k: int | Var | Unset | None = UNSET
    top_p: float | Var | Unset | None = UNSET
    min_p: float | Var | Unset | None = UNSET
    repetition_penalty: float | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    no_repeat_ngram: int | Var | Unset | None = UNSET
    precision: Literal["float32", "bfloat16", "int8"] | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    max_ratio: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Viterbi(Decoder, word="viterbi"):
    """Find the most probable answer of all, for a decoder that depends on the last token alone (Viterbi 1967).

    precision: what is computed with: bfloat16, or int8 weights on a CPU, where the processor multiplies them
        faster; default 'float32'.
    max_length: tokens of an answer at most, eos included; default 512.
    max_ratio: tokens of an answer at most for each token of its source, beside 50 that are always allowed; default
        3.0.
    """
    precision: Literal["float32", "bfloat16", "int8"] | Var | Unset = field(default=UNSET, kw_only=False)
    max_length: int | Var | Unset = UNSET
    max_ratio: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ActivationDefaults(RecipeObject):
    """The defaults of every `activation`."""
    kind: Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset | None = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class ActiveMemoryDefaults(RecipeObject):
    """The defaults of every `active_memory`."""
    from_: str | Var | Unset | None = UNSET
    write: Literal["first", "all"] | Var | Unset | None = UNSET
    recompute: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class AddDefaults(RecipeObject):
    """The defaults of every `add`."""
    scale: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CgruDefaults(RecipeObject):
    """The defaults of every `cgru`."""
    kernel: Sequence[int | Var] | Var | Unset | None = field(default=UNSET, kw_only=False)
    gates: Literal["cutoff", "plain", "hard"] | Var | Unset | None = UNSET
    candidate: Literal["tanh", "hard"] | Var | Unset | None = UNSET
    bias: float | Var | Unset | None = UNSET
    reset_bias: float | Var | Unset | None = UNSET
    diagonal: bool | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET
    dropout_of: Literal["state", "candidate"] | Var | Unset | None = UNSET
    dropout_by: Literal["rate", "length", "sqrt_length"] | Var | Unset | None = UNSET
    saturation: float | Var | Unset | None = UNSET
    with_: str | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ConvDefaults(RecipeObject):
    """The defaults of every `conv`."""
    kernel: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset | None = UNSET
    dilation: int | Var | Unset | None = UNSET
    stride: int | Var | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET
    depthwise: bool | Var | Unset | None = UNSET
    weight_norm: bool | Var | Unset | None = UNSET
    init_scale: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Conv2dDefaults(RecipeObject):
    """The defaults of every `conv2d`."""
    kernel: Sequence[int | Var] | Var | Unset | None = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET
    stride: Sequence[int | Var] | Var | Unset | None = UNSET
    align: Literal["center", "start"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CrossAttentionDefaults(RecipeObject):
    """The defaults of every `cross_attention`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    score: Literal["scaled_dot", "dot", "general", "additive", "location", "fine_grained"] | Var | Unset | None = UNSET
    from_: str | Sequence[str | Var] | Var | Unset | None = UNSET
    query: str | Var | Unset | None = UNSET
    keys: str | Var | Unset | None = UNSET
    values: str | Var | Unset | None = UNSET
    local: Literal["none", "monotonic", "predicted"] | Var | Unset | None = UNSET
    window: int | Var | Unset | None = UNSET
    merge: Literal["concat", "average"] | Var | Unset | None = UNSET
    max_length: int | Var | Unset | None = UNSET
    sqrt_length: bool | Var | Unset | None = UNSET
    gate: bool | Var | Unset | None = UNSET
    doubly_stochastic: float | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DeltaNetDefaults(RecipeObject):
    """The defaults of every `delta_net`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    negative_eigenvalues: bool | Var | Unset | None = UNSET
    scale_queries: bool | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DequeMemoryDefaults(RecipeObject):
    """The defaults of every `deque_memory`."""
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DifferentialAttentionDefaults(RecipeObject):
    """The defaults of every `differential_attention`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    lambda_init: float | Var | Unset | None = UNSET
    lambda_: Literal["constant", "by_depth"] | Var | Unset | None = UNSET
    positions: Literal["none", "rotary"] | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DiscreteStacksDefaults(RecipeObject):
    """The defaults of every `discrete_stacks`."""
    stacks: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    depth: int | Var | Unset | None = UNSET
    cells: int | Var | Unset | None = UNSET
    no_op: bool | Var | Unset | None = UNSET
    rounding: Literal["none", "evaluation"] | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class EpisodicMemoryDefaults(RecipeObject):
    """The defaults of every `episodic_memory`."""
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)
    query: str | Var | Unset | None = UNSET
    hops: int | Var | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET
    encoding: Literal["position", "position_code", "bag"] | Var | Unset | None = UNSET
    gate: Literal["sigmoid", "softmax"] | Var | Unset | None = UNSET
    supervision: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class FeedForwardDefaults(RecipeObject):
    """The defaults of every `feed_forward`."""
    hidden: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET
    bias: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class GatedDeltaNetDefaults(RecipeObject):
    """The defaults of every `gated_delta_net`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    decay: Literal["scalar", "vector"] | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    negative_eigenvalues: bool | Var | Unset | None = UNSET
    scale_queries: bool | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class GatedLinearAttentionDefaults(RecipeObject):
    """The defaults of every `gated_linear_attention`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    rank: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET
    head_norm: Literal["group", "rms"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class GridDefaults(RecipeObject):
    """The defaults of every `grid`."""
    columns: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    max_length_ratio: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LatentAttentionDefaults(RecipeObject):
    """The defaults of every `latent_attention`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    latent: int | Var | Unset | None = UNSET
    query_latent: int | Var | Unset | None = UNSET
    head_width: int | Var | Unset | None = UNSET
    rotary_width: int | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearDefaults(RecipeObject):
    """The defaults of every `linear`."""
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"] | Var | Unset | None = UNSET
    bias: bool | Var | Unset | None = UNSET
    weight_norm: bool | Var | Unset | None = UNSET
    init_scale: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearAttentionDefaults(RecipeObject):
    """The defaults of every `linear_attention`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LongConvDefaults(RecipeObject):
    """The defaults of every `long_conv`."""
    state: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MambaDefaults(RecipeObject):
    """The defaults of every `mamba`."""
    state: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    expansion: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Mamba2Defaults(RecipeObject):
    """The defaults of every `mamba2`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    groups: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MaxoutDefaults(RecipeObject):
    """The defaults of every `maxout`."""
    pieces: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    width: int | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryNetworkDefaults(RecipeObject):
    """The defaults of every `memory_network`."""
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)
    query: str | Var | Unset | None = UNSET
    hops: int | Var | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET
    tying: Literal["adjacent", "layer_wise"] | Var | Unset | None = UNSET
    encoding: Literal["position", "position_code", "bag"] | Var | Unset | None = UNSET
    time: int | Var | Unset | None = UNSET
    noise: float | Var | Unset | None = UNSET
    linear_start: float | Var | Unset | None = UNSET
    slots: int | Var | Unset | None = UNSET
    answer: Literal["state", "words"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MixtureOfExpertsDefaults(RecipeObject):
    """The defaults of every `mixture_of_experts`."""
    experts: int | Var | Unset | None = UNSET
    top_k: int | Var | Unset | None = UNSET
    shared: int | Var | Unset | None = UNSET
    balance_rate: float | Var | Unset | None = UNSET
    normalise: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MlstmDefaults(RecipeObject):
    """The defaults of every `mlstm`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    forget_gate: Literal["sigmoid", "exp"] | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class NoInputDefaults(RecipeObject):
    """The defaults of every `no_input`."""
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class NormDefaults(RecipeObject):
    """The defaults of every `norm`."""
    kind: Literal["layer", "rms"] | Var | Unset | None = field(default=UNSET, kw_only=False)
    eps: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class NramDefaults(RecipeObject):
    """The defaults of every `nram`."""
    steps: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    registers: int | Var | Unset | None = UNSET
    hidden: int | Var | Unset | None = UNSET
    layers: int | Var | Unset | None = UNSET
    entropy: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class NtmDefaults(RecipeObject):
    """The defaults of every `ntm`."""
    slots: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    slot_width: int | Var | Unset | None = UNSET
    read_heads: int | Var | Unset | None = UNSET
    write_heads: int | Var | Unset | None = UNSET
    order: Literal["write_read", "read_write", "write_address_read"] | Var | Unset | None = UNSET
    shift: int | Var | Unset | None = UNSET
    memory: Literal["constant", "learned", "random"] | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ParallelDefaults(RecipeObject):
    """The defaults of every `parallel`."""
    merge: Literal["sum", "mean", "concat", "gate", "max", "attention"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PatchesDefaults(RecipeObject):
    """The defaults of every `patches`."""
    width: int | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PoolDefaults(RecipeObject):
    """The defaults of every `pool`."""
    how: Literal["last", "mean", "max", "attention"] | Var | Unset | None = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Pool2dDefaults(RecipeObject):
    """The defaults of every `pool2d`."""
    how: Literal["max", "mean"] | Var | Unset | None = field(default=UNSET, kw_only=False)
    size: Sequence[int | Var] | Var | Unset | None = UNSET
    stride: Sequence[int | Var] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PoolHierarchicalDefaults(RecipeObject):
    """The defaults of every `pool_hierarchical`."""
    max_length: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    activation: Literal["none", "relu", "gelu", "silu", "tanh", "sigmoid"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PositionsDefaults(RecipeObject):
    """The defaults of every `positions`."""
    kind: Literal["sinusoidal", "learned"] | Var | Unset | None = field(default=UNSET, kw_only=False)
    max_length: int | Var | Unset | None = UNSET
    per_iteration: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PyramidDefaults(RecipeObject):
    """The defaults of every `pyramid`."""
    factor: int | Var | Unset | None = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class QueueMemoryDefaults(RecipeObject):
    """The defaults of every `queue_memory`."""
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RepeatDefaults(RecipeObject):
    """The defaults of every `repeat`."""
    share: bool | Var | Unset | None = UNSET
    relaxation: Mapping[str, Any] | Unset | None = UNSET
    recompute: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ResidualDefaults(RecipeObject):
    """The defaults of every `residual`."""
    norm: Literal["none", "pre", "post"] | Var | Unset | None = UNSET
    scale: float | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RetentionDefaults(RecipeObject):
    """The defaults of every `retention`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    state: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET
    head_norm: Literal["group", "rms"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RgLruDefaults(RecipeObject):
    """The defaults of every `rg_lru`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET
    first: Literal["scaled", "plain"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RnnDefaults(RecipeObject):
    """The defaults of every `rnn`."""
    cell: Literal["lstm", "gru", "tanh", "min_gru"] | Var | Unset | None = field(default=UNSET, kw_only=False)
    width: int | Var | Unset | None = UNSET
    layers: int | Var | Unset | None = UNSET
    bidirectional: bool | Var | Unset | None = UNSET
    reset: Literal["before", "after"] | Var | Unset | None = UNSET
    projection: int | Var | Unset | None = UNSET
    norm: Literal["none", "gates"] | Var | Unset | None = UNSET
    output_activation: Literal["tanh", "none"] | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET
    locked: bool | Var | Unset | None = UNSET
    weight_dropout: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RnnCellDefaults(RecipeObject):
    """The defaults of every `rnn_cell`."""
    cell: Literal["gru", "tanh"] | Var | Unset | None = UNSET
    reset: Literal["before", "after"] | Var | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Rwkv7Defaults(RecipeObject):
    """The defaults of every `rwkv7`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    head_width: int | Var | Unset | None = UNSET
    rank: int | Var | Unset | None = UNSET
    chunk: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET
    value_residual: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ScaleDefaults(RecipeObject):
    """The defaults of every `scale`."""
    factor: float | Var | Unset | None = field(default=UNSET, kw_only=False)
    gradient: float | Var | Unset | None = UNSET
    readers: int | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SelectColumnDefaults(RecipeObject):
    """The defaults of every `select_column`."""
    index: int | Var | Unset | None = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class SelfAttentionDefaults(RecipeObject):
    """The defaults of every `self_attention`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    dropout: float | Var | Unset | None = UNSET
    window: int | Var | Unset | None = UNSET
    positions: Literal["none", "relative", "rotary", "transformer_xl", "alibi"] | Var | Unset | None = UNSET
    max_distance: int | Var | Unset | None = UNSET
    bias: Literal["all", "none", "qkv"] | bool | Var | Unset | None = UNSET
    kv_heads: int | Var | Unset | None = UNSET
    head_width: int | Var | Unset | None = UNSET
    rotary: Mapping[str, Any] | Unset | None = UNSET
    qk_norm: bool | Var | Unset | None = UNSET
    soft_cap: float | Var | Unset | None = UNSET
    sinks: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SlstmDefaults(RecipeObject):
    """The defaults of every `slstm`."""
    heads: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    short_conv: int | Var | Unset | None = UNSET
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SourceStateDefaults(RecipeObject):
    """The defaults of every `source_state`."""
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class StackMemoryDefaults(RecipeObject):
    """The defaults of every `stack_memory`."""
    width: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    initial_state: str | Mapping[str, Any] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SupportingFactsDefaults(RecipeObject):
    """The defaults of every `supporting_facts`."""
    from_: str | Var | Unset | None = field(default=UNSET, kw_only=False)
    query: str | Var | Unset | None = UNSET
    hops: int | Var | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET
    encoding: Literal["position", "position_code", "bag"] | Var | Unset | None = UNSET
    margin: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class UseDefaults(RecipeObject):
    """The defaults of every `use`."""
    copy: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class WindowMemoryDefaults(RecipeObject):
    """The defaults of every `window_memory`."""
    hops: int | Var | Unset | None = field(default=UNSET, kw_only=False)
    window: int | Var | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET
    relu: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class EarlyStopping(RecipeObject):
    """Ends the training when a metric has stopped getting better, or is good enough.

    patience: How many validations without a better value are waited for; `null` waits until the budget is spent;
        default 5.
    metric: Metric to monitor; a loss or a perplexity improves by falling, everything else by rising; default
        'val/loss'.
    min_delta: A change of no more than this does not count as better; default 0.0.
    goal: The training ends as soon as the metric is at least as good as this.
    """
    patience: int | Var | Unset | None = UNSET
    metric: Literal["val/loss", "val/perplexity", "val/word_perplexity", "val/bits_per_byte", "val/bits_per_character", "val/token_accuracy", "val/exact_match", "val/bleu", "val/chrf", "val/ter", "val/word_error_rate", "val/character_error_rate", "val/bits_per_sequence", "val_sample/exact_match", "val_sample/bleu", "val_sample/chrf", "val_sample/ter", "val_sample/word_error_rate", "val_sample/character_error_rate"] | Var | Unset = UNSET
    min_delta: float | Var | Unset = UNSET
    goal: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Ema(RecipeObject):
    """Exponential moving average of the weights of all steps (EMA). Validations, `--checkpoint` and the final weights
    are of the average; the training goes on with its own.

    decay: The share of the average that stays in a step, above 0 and below 1; in step t (1 + t) / (10 + t) at most;
        default 0.999.
    """
    decay: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CharactersEmbedding(Embedding, word="characters"):
    """Convolution over the characters of a token, and highway layers (Kim et al. 2016): as wide as its features.

    width: The width of a character's vector; default 15.
    kernels: How many characters each kernel spans; default [1, 2, 3, 4, 5, 6].
    features: How many features each kernel has; default [25, 50, 75, 100, 125, 150].
    highway: How many highway layers, 0 or more; default 1.
    max_length: How many bytes of a token count, the two marks included; default 50.
    padding: Whether windows run on over zeros after the token, as in the authors' program; default False.
    bound: How large any number is at first, drawn evenly; by default each layer draws its own.
    """
    width: int | Var | Unset = field(default=UNSET, kw_only=False)
    kernels: Sequence[int | Var] | Var | Unset = UNSET
    features: Sequence[int | Var] | Var | Unset = UNSET
    highway: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    padding: bool | Var | Unset = UNSET
    bound: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class LearnedEmbedding(Embedding, word="learned"):
    """Learned vector for each token, as wide as `model.width`, with entries of variance 1: sqrt(D) E, E ~ N(0, 1/D)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearEmbedding(Embedding, word="linear"):
    """Linear map of the bits of a token of the tokenizer `bits`, or other features: W f(id), W ~ N(0, 1/F)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OneHotEmbedding(Embedding, word="one_hot"):
    """Unit vector for each token, zeros for the special ones: their sum is a bag of words. Learns nothing."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(RecipeObject):
    """How outputs are compared with their references.

    metrics: Metrics to compute. Default: BLEU, chrF and exact match where most references of val have four words,
        else exact match, an error rate and chrF.
    bleu_tokenizer: How BLEU reads words: 13a, at spaces and punctuation; char, each character; zh, Chinese
        characters; ja-mecab, Japanese words; flores200, pieces of SentencePiece for 200 languages; default '13a'.
    stride: Of a text in windows whose state is not carried, how many tokens of each window are measured, the last
        ones; those before are read. By default all of a window, so that its first tokens are read after nothing.
    """
    metrics: Sequence[Literal["exact_match", "bleu", "chrf", "ter", "word_error_rate", "character_error_rate"]] | Unset | None = UNSET
    bleu_tokenizer: Literal["13a", "char", "zh", "ja-mecab", "flores200"] | Var | Unset = UNSET
    stride: int | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class GradientNoise(RecipeObject):
    """Normal noise on every gradient, after clipping (Neelakantan et al. 2015, section 3).

    scale: Its variance in the first step; the paper tries 0.01, 0.3 and 1; default 1.0.
    decay: In step t, from 0, the variance is scale / (1 + t)^decay; default 0.55.
    """
    scale: float | Var | Unset = UNSET
    decay: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class HubData(RecipeObject, others="encoders"):
    """Pairs of texts from a data set of the Hugging Face hub, or a folder in its form.

    id: The data set's id, such as `bentrevett/multi30k`.
    config: The configuration of a data set that has several.
    train: The split to train on; default 'train'.
    val: The split to watch the training with; default 'validation'.
    test: The split that `evaluate` measures; default 'test'.
    source: The column with the source text. With several encoders, one key per encoder in its place.
    target: The column with the target text.
    encoders: With several encoders, the text of each by its name, in place of `source`.
    """
    id: str | Var
    config: str | Var | Unset | None = UNSET
    train: str | Var | Unset = UNSET
    val: str | Var | Unset | None = UNSET
    test: str | Var | Unset | None = UNSET
    source: str | Var | Unset | None = UNSET
    target: str | Var
    encoders: Mapping[str, str] | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Imageaugment(RecipeObject):
    """Images a little rotated, scaled and moved, anew in each epoch.

    rotate: At most so many degrees to either side; default 0.0.
    scale: At most so much larger or smaller: 0.1 is from 0.9 to 1.1; default 0.0.
    shift: Moved by at most this share of each side; default 0.0.
    """
    rotate: float | Var | Unset = UNSET
    scale: float | Var | Unset = UNSET
    shift: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DefaultInitialization(Initialization, word="default"):
    """The block's own: Glorot's, orthogonal from one step of an rnn to the next, or that of its paper."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OrthogonalInitialization(Initialization, word="orthogonal"):
    """Orthogonal rows of norm `gain`, convolution kernels flattened (Saxe et al. 2014, section 3).

    gain: the norm of each row; 1.44 in Kaiser & Bengio's code; default 1.0.
    """
    gain: float | Var | Unset = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class UniformInitialization(Initialization, word="uniform"):
    """Uniform between two bounds, whatever the size of the matrix (Zaremba et al. 2014, section 4.1).

    bound: the largest number; its negative is the smallest; default 0.1.
    """
    bound: float | Var | Unset = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class UniformScalingInitialization(Initialization, word="uniform_scaling"):
    """Uniform, of variance gain^2 / inputs, so that a layer keeps its input's size (Sussillo & Abbott 2014).

    gain: what the size is multiplied by; 1.8 in Kaiser & Sutskever's code; default 1.8.
    """
    gain: float | Var | Unset = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Logging(RecipeObject):
    """Where metrics go besides `metrics.jsonl`; without it, W&B offline inside the run folder.

    wandb: Where Weights & Biases keeps the run. It goes online when the user is logged in; `WANDB_MODE` is obeyed.
    """
    wandb: WandB | Mapping[str, Any] | Literal[False] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Logmel(RecipeObject):
    """Logarithms of the energies in bands of the mel scale: a frame of so many numbers every hop.

    bands: Bands, the width of a frame; default 40.
    window: Seconds of a frame, one sample or more; default 0.025.
    hop: Seconds from the start of a frame to that of the next, one sample or more; default 0.01.
    """
    bands: int | Var | Unset = UNSET
    window: float | Var | Unset = UNSET
    hop: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Measuredsplit(RecipeObject, others="encoders"):
    """A part of the data that is measured: as a part that is trained on, and with several references if there are.

    file: A file with columns; `source` and `target` then name its columns.
    source: The file, or the column, with the source text. With several encoders, one key per encoder in its place.
    target: The file, or the column, with the references; a list where every line has several.
    encoders: With several encoders, the text of each by its name, in place of `source`.
    """
    file: str | Var | Unset | None = UNSET
    source: str | Var | Unset | None = UNSET
    target: str | Sequence[str | Var] | Var
    encoders: Mapping[str, str] | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Model(RecipeObject):
    """The model: an encoder, several or none, and a decoder, each a stack of blocks. A block's name holds its
    defaults.

    width: The width of the stream; learned token embeddings have it, and blocks with a `width` default to it.
    embedding: What makes a vector of each token; default 'learned'.
    embedding_dropout: Probability of dropping a word, 0 <= embedding_dropout < 1: its vector is zero wherever it
        stands in a batch (Gal & Ghahramani 2016, section 4; Merity et al. 2018, section 4.3); default 0.0.
    dropout: The default of every setting called `dropout`, and of the block `dropout`; default 0.0.
    encoder: The stack that reads the source. Without an encoder the model is a language model over the target.
    encoders: Several encoders by name, each a stack; the data then has one key per encoder. A line to translate has
        their texts in this order.
    decoder: The stack that writes the target, one position after another; none where CTC does, `output.ctc`.
    output: What maps the decoder's last output to the vocabulary.
    stacks: Named stacks for the block `use`; a second use shares the parameters.
    activation: activation.
    active_memory: active_memory.
    add: add.
    cgru: cgru.
    conv: conv.
    conv2d: conv2d.
    cross_attention: cross_attention.
    delta_net: delta_net.
    deque_memory: deque_memory.
    differential_attention: differential_attention.
    discrete_stacks: discrete_stacks.
    episodic_memory: episodic_memory.
    feed_forward: feed_forward.
    gated_delta_net: gated_delta_net.
    gated_linear_attention: gated_linear_attention.
    grid: grid.
    latent_attention: latent_attention.
    linear: linear.
    linear_attention: linear_attention.
    long_conv: long_conv.
    mamba: mamba.
    mamba2: mamba2.
    maxout: maxout.
    memory_network: memory_network.
    mixture_of_experts: mixture_of_experts.
    mlstm: mlstm.
    no_input: no_input.
    norm: norm.
    nram: nram.
    ntm: ntm.
    parallel: parallel.
    patches: patches.
    pool: pool.
    pool2d: pool2d.
    pool_hierarchical: pool_hierarchical.
    positions: positions.
    pyramid: pyramid.
    queue_memory: queue_memory.
    repeat: repeat.
    residual: residual.
    retention: retention.
    rg_lru: rg_lru.
    rnn: rnn.
    rnn_cell: rnn_cell.
    rwkv7: rwkv7.
    scale: scale.
    select_column: select_column.
    self_attention: self_attention.
    slstm: slstm.
    source_state: source_state.
    stack_memory: stack_memory.
    supporting_facts: supporting_facts.
    use: use.
    window_memory: window_memory.
    """
    width: int | Var | Unset | None = UNSET
    embedding: AnyEmbedding | Unset | None = UNSET
    embedding_dropout: float | Var | Unset | None = UNSET
    dropout: float | Var | Unset | None = UNSET
    encoder: Stack | Unset | None = UNSET
    encoders: Mapping[str, Stack] | Unset | None = UNSET
    decoder: Stack | Unset | None = UNSET
    output: Output | Mapping[str, Any] | Unset | None = UNSET
    stacks: Mapping[str, Stack] | Unset | None = UNSET
    activation: ActivationDefaults | Mapping[str, Any] | Unset | None = UNSET
    active_memory: ActiveMemoryDefaults | Mapping[str, Any] | Unset | None = UNSET
    add: AddDefaults | Mapping[str, Any] | Unset | None = UNSET
    cgru: CgruDefaults | Mapping[str, Any] | Unset | None = UNSET
    conv: ConvDefaults | Mapping[str, Any] | Unset | None = UNSET
    conv2d: Conv2dDefaults | Mapping[str, Any] | Unset | None = UNSET
    cross_attention: CrossAttentionDefaults | Mapping[str, Any] | Unset | None = UNSET
    delta_net: DeltaNetDefaults | Mapping[str, Any] | Unset | None = UNSET
    deque_memory: DequeMemoryDefaults | Mapping[str, Any] | Unset | None = UNSET
    differential_attention: DifferentialAttentionDefaults | Mapping[str, Any] | Unset | None = UNSET
    discrete_stacks: DiscreteStacksDefaults | Mapping[str, Any] | Unset | None = UNSET
    episodic_memory: EpisodicMemoryDefaults | Mapping[str, Any] | Unset | None = UNSET
    feed_forward: FeedForwardDefaults | Mapping[str, Any] | Unset | None = UNSET
    gated_delta_net: GatedDeltaNetDefaults | Mapping[str, Any] | Unset | None = UNSET
    gated_linear_attention: GatedLinearAttentionDefaults | Mapping[str, Any] | Unset | None = UNSET
    grid: GridDefaults | Mapping[str, Any] | Unset | None = UNSET
    latent_attention: LatentAttentionDefaults | Mapping[str, Any] | Unset | None = UNSET
    linear: LinearDefaults | Mapping[str, Any] | Unset | None = UNSET
    linear_attention: LinearAttentionDefaults | Mapping[str, Any] | Unset | None = UNSET
    long_conv: LongConvDefaults | Mapping[str, Any] | Unset | None = UNSET
    mamba: MambaDefaults | Mapping[str, Any] | Unset | None = UNSET
    mamba2: Mamba2Defaults | Mapping[str, Any] | Unset | None = UNSET
    maxout: MaxoutDefaults | Mapping[str, Any] | Unset | None = UNSET
    memory_network: MemoryNetworkDefaults | Mapping[str, Any] | Unset | None = UNSET
    mixture_of_experts: MixtureOfExpertsDefaults | Mapping[str, Any] | Unset | None = UNSET
    mlstm: MlstmDefaults | Mapping[str, Any] | Unset | None = UNSET
    no_input: NoInputDefaults | Mapping[str, Any] | Unset | None = UNSET
    norm: NormDefaults | Mapping[str, Any] | Unset | None = UNSET
    nram: NramDefaults | Mapping[str, Any] | Unset | None = UNSET
    ntm: NtmDefaults | Mapping[str, Any] | Unset | None = UNSET
    parallel: ParallelDefaults | Mapping[str, Any] | Unset | None = UNSET
    patches: PatchesDefaults | Mapping[str, Any] | Unset | None = UNSET
    pool: PoolDefaults | Mapping[str, Any] | Unset | None = UNSET
    pool2d: Pool2dDefaults | Mapping[str, Any] | Unset | None = UNSET
    pool_hierarchical: PoolHierarchicalDefaults | Mapping[str, Any] | Unset | None = UNSET
    positions: PositionsDefaults | Mapping[str, Any] | Unset | None = UNSET
    pyramid: PyramidDefaults | Mapping[str, Any] | Unset | None = UNSET
    queue_memory: QueueMemoryDefaults | Mapping[str, Any] | Unset | None = UNSET
    repeat: RepeatDefaults | Mapping[str, Any] | Unset | None = UNSET
    residual: ResidualDefaults | Mapping[str, Any] | Unset | None = UNSET
    retention: RetentionDefaults | Mapping[str, Any] | Unset | None = UNSET
    rg_lru: RgLruDefaults | Mapping[str, Any] | Unset | None = UNSET
    rnn: RnnDefaults | Mapping[str, Any] | Unset | None = UNSET
    rnn_cell: RnnCellDefaults | Mapping[str, Any] | Unset | None = UNSET
    rwkv7: Rwkv7Defaults | Mapping[str, Any] | Unset | None = UNSET
    scale: ScaleDefaults | Mapping[str, Any] | Unset | None = UNSET
    select_column: SelectColumnDefaults | Mapping[str, Any] | Unset | None = UNSET
    self_attention: SelfAttentionDefaults | Mapping[str, Any] | Unset | None = UNSET
    slstm: SlstmDefaults | Mapping[str, Any] | Unset | None = UNSET
    source_state: SourceStateDefaults | Mapping[str, Any] | Unset | None = UNSET
    stack_memory: StackMemoryDefaults | Mapping[str, Any] | Unset | None = UNSET
    supporting_facts: SupportingFactsDefaults | Mapping[str, Any] | Unset | None = UNSET
    use: UseDefaults | Mapping[str, Any] | Unset | None = UNSET
    window_memory: WindowMemoryDefaults | Mapping[str, Any] | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Adadelta(Optimizer, word="adadelta"):
    """Adadelta (Zeiler 2012), with the constants of Bahdanau et al. 2015.

    learning_rate: factor of the step that the rule finds by itself; default 1.0.
    decay: decay of the two running means; default 0.95.
    eps: added under both roots; default 1e-06.
    weight_decay: L2 penalty added to the gradient; default 0.0.
    decayed: what weight decay falls on: matrices and embeddings, or biases and gains, too; default 'matrices'.
    """
    learning_rate: float | Var | Unset = field(default=UNSET, kw_only=False)
    decay: float | Var | Unset = UNSET
    eps: float | Var | Unset = UNSET
    weight_decay: float | Var | Unset = UNSET
    decayed: Literal["matrices", "all"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Adagrad(Optimizer, word="adagrad"):
    """Adagrad (Duchi et al. 2011).

    learning_rate: the step size before the schedule's factor; default 0.01.
    initial: what the sum of squared gradients starts from; default 0.0.
    eps: added to the denominator; default 1e-10.
    weight_decay: L2 penalty added to the gradient; default 0.0.
    decay: what weight decay falls on: matrices and embeddings, or biases and gains, too; default 'matrices'.
    """
    learning_rate: float | Var | Unset = field(default=UNSET, kw_only=False)
    initial: float | Var | Unset = UNSET
    eps: float | Var | Unset = UNSET
    weight_decay: float | Var | Unset = UNSET
    decay: Literal["matrices", "all"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Adam(Optimizer, word="adam"):
    """Adam (Kingma & Ba 2015), with the second beta and eps of Vaswani et al. 2017, section 5.3.

    learning_rate: the step size before the schedule's factor; default 0.001.
    beta1: decay of the mean of the gradients; default 0.9.
    beta2: decay of the mean of their squares; default 0.98.
    eps: added to the denominator; default 1e-09.
    weight_decay: L2 penalty added to the gradient; default 0.0.
    decay: what weight decay falls on: matrices and embeddings, or biases and gains, too; default 'matrices'.
    """
    learning_rate: float | Var | Unset = field(default=UNSET, kw_only=False)
    beta1: float | Var | Unset = UNSET
    beta2: float | Var | Unset = UNSET
    eps: float | Var | Unset = UNSET
    weight_decay: float | Var | Unset = UNSET
    decay: Literal["matrices", "all"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class AdamW(Optimizer, word="adamw"):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    learning_rate: the step size before the schedule's factor; default 0.001.
    beta1: decay of the mean of the gradients; default 0.9.
    beta2: decay of the mean of their squares; default 0.98.
    eps: added to the denominator; default 1e-09.
    weight_decay: share of each weight taken away per unit of learning rate; default 0.01.
    decay: what weight decay falls on: matrices and embeddings, or biases and gains, too; default 'matrices'.
    """
    learning_rate: float | Var | Unset = field(default=UNSET, kw_only=False)
    beta1: float | Var | Unset = UNSET
    beta2: float | Var | Unset = UNSET
    eps: float | Var | Unset = UNSET
    weight_decay: float | Var | Unset = UNSET
    decay: Literal["matrices", "all"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RMSprop(Optimizer, word="rmsprop"):
    """RMSProp; with `centered` and momentum the form of Graves 2013, equations 38 to 45.

    learning_rate: the step size before the schedule's factor; default 0.001.
    decay: decay of the mean of the squared gradients; default 0.99.
    momentum: share of the last step that is kept; default 0.0.
    eps: added to the denominator; default 1e-08.
    centered: divide by the gradients' deviation in place of their size; default False.
    weight_decay: L2 penalty added to the gradient; default 0.0.
    decayed: what weight decay falls on: matrices and embeddings, or biases and gains, too; default 'matrices'.
    """
    learning_rate: float | Var | Unset = field(default=UNSET, kw_only=False)
    decay: float | Var | Unset = UNSET
    momentum: float | Var | Unset = UNSET
    eps: float | Var | Unset = UNSET
    centered: bool | Var | Unset = UNSET
    weight_decay: float | Var | Unset = UNSET
    decayed: Literal["matrices", "all"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SGD(Optimizer, word="sgd"):
    """Stochastic gradient descent.

    learning_rate: the step size before the schedule's factor; default 0.1.
    momentum: share of the last step that is kept; default 0.0.
    weight_decay: L2 penalty added to the gradient; default 0.0.
    decay: what weight decay falls on: matrices and embeddings, or biases and gains, too; default 'matrices'.
    """
    learning_rate: float | Var | Unset = field(default=UNSET, kw_only=False)
    momentum: float | Var | Unset = UNSET
    weight_decay: float | Var | Unset = UNSET
    decay: Literal["matrices", "all"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Output(RecipeObject):
    """From the decoder's last output to the vocabulary.

    tie: Whose embeddings share one matrix with the output: `source`, `target`, or an encoder's name.
    kind: Output head: what makes the logits, and what it trains on; default 'linear'.
    length: How many tokens every target has, where all have as many; its end then costs nothing.
    ctc: CTC over the positions that an encoder leaves, beside the decoder or alone (Graves et al. 2006). Its
        answers have no more tokens than these positions.
    bias: Whether each token has a bias, of the heads `linear` and `sampled`; default True.
    """
    tie: Sequence[str | Var] | Var | Unset | None = UNSET
    kind: AnyOutputHead | Unset | None = UNSET
    length: int | Var | Unset | None = UNSET
    ctc: Ctc | Mapping[str, Any] | Unset | None = UNSET
    bias: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class AdaptiveOutputHead(OutputHead, word="adaptive"):
    """Adaptive softmax (Grave et al. 2017): a softmax over the first ids and a token for each cluster of later ones.

    cutoffs: The first id of each cluster, ascending.
    div_value: By what the width of a cluster is divided, d, from one to the next; default 4.0.
    """
    cutoffs: Sequence[int | Var] | Var = field(kw_only=False)
    div_value: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CharLstmOutputHead(OutputHead, word="char_lstm"):
    """LSTM over the characters of a token, given the decoder's output (Jozefowicz et al. 2016, section 3.3).

    width: The width of the LSTM and of a character's vector; default 128.
    max_length: How many bytes of a token count, the two marks included; tokens that are alike in them are one;
        default 50.
    """
    width: int | Var | Unset = field(default=UNSET, kw_only=False)
    max_length: int | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CnnOutputHead(OutputHead, word="cnn"):
    """Scalar products with vectors made of each word's characters (CNN softmax: Jozefowicz et al. 2016, section 3.2).

    width: The width of a character's vector; default 15.
    kernels: How many characters each kernel spans; default [1, 2, 3, 4, 5, 6].
    features: How many features each kernel has; default [25, 50, 75, 100, 125, 150].
    highway: How many highway layers, 0 or more; default 1.
    max_length: How many bytes of a token count, the two marks included; default 50.
    correction: The width of c_w; 0 for none; default 128.
    samples: How many tokens are drawn for a batch; all without it.
    """
    width: int | Var | Unset = field(default=UNSET, kw_only=False)
    kernels: Sequence[int | Var] | Var | Unset = UNSET
    features: Sequence[int | Var] | Var | Unset = UNSET
    highway: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    correction: int | Var | Unset = UNSET
    samples: int | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class IdentityOutputHead(OutputHead, word="identity"):
    """The decoder's last output as it is: a logit for each token but the special ones, which are impossible."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearOutputHead(OutputHead, word="linear"):
    """Linear map to a logit for each token: W y + b, without b if `model.output.bias` is false."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SampledOutputHead(OutputHead, word="sampled"):
    """Linear map to a logit for each token that trains on a few of them (Jean et al. 2015; Jozefowicz et al. 2016).

    samples: How many tokens are drawn for a batch, fewer than there are.
    """
    samples: int | Var = field(kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class SigmoidOutputHead(OutputHead, word="sigmoid"):
    """Sigmoid for each bit of the answer's vectors (tokenizer `bits`), and one for eos (Graves et al. 2014, section
    4)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ParallelData(RecipeObject):
    """Pairs of texts from files, looked up under `--data`, then beside the recipe.

    train: One part of the data: two line-aligned text files, or one file with columns (TSV, CSV, JSON lines,
        Parquet).
    val: A part of the data that is measured: as a part that is trained on, and with several references if there
        are.
    test: A part of the data that is measured: as a part that is trained on, and with several references if there
        are.
    test_sets: Further test sets by name, measured as `test` is; their scores are called `NAME/bleu` and so on.
    max_ratio: Training pairs are left out of which a side has more than so many times the tokens of another.
    deduplicate: Whether of training pairs that are repeated only the first is used; default False.
    decontaminate: Whether training pairs are left out of which a side is a line of `val`, `test` or a test set;
        default False.
    hold_out: sources | pairs: whether a number in `val` and `test` holds out all pairs of a source together, or
        pairs one by one, some of whose sources are then trained on with another target; default 'sources'.
    """
    train: Split | Mapping[str, Any] | Sequence[Split | Mapping[str, Any]] | Var
    val: Measuredsplit | Mapping[str, Any] | int | Var | Unset | None = UNSET
    test: Measuredsplit | Mapping[str, Any] | int | Var | Unset | None = UNSET
    test_sets: Mapping[str, Measuredsplit | Mapping[str, Any]] | Unset | None = UNSET
    max_ratio: float | Var | Unset | None = UNSET
    deduplicate: bool | Var | Unset = UNSET
    decontaminate: bool | Var | Unset = UNSET
    hold_out: Literal["sources", "pairs"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Parametergroup(RecipeObject):
    """Blocks that are trained with a learning rate or a weight decay of their own, or not at all.

    blocks: Their paths, as `plan` prints them: `encoder`, `decoder[1].repeat`, `encoder.embedding`, `output`. What
        is in a block belongs to it, and of several paths the longest counts.
    factor: What the learning rate is multiplied with; 0 freezes: no gradient, and no state of the optimizer.
    weight_decay: Weight decay of all their parameters, matrices or not, in place of the optimizer's.
    """
    blocks: str | Sequence[str | Var] | Var
    factor: float | Var | Unset | None = UNSET
    weight_decay: float | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ScheduledSampling(RecipeObject):
    """Some tokens of the target so far are the model's own, as they are when it translates (Bengio et al. 2015).

    rate: Probability at the end that a token which the decoder reads is replaced; the first one, bos, never is;
        default 0.1.
    warmup: The share of the budget over which the probability rises from 0 to `rate`; default 0.5.
    choose: What replaces it: argmax, the most probable token, or sample, one drawn as probable as it is; default
        'argmax'.
    """
    rate: float | Var | Unset = UNSET
    warmup: float | Var | Unset = UNSET
    choose: Literal["argmax", "sample"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ConstantSchedule(Schedule, word="constant"):
    """The learning rate as it is, after a linear warm-up.

    warmup_steps: optimizer steps until the learning rate is reached; below 1, a share of the budget; default 0.
    """
    warmup_steps: float | Var | Unset = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class CosineSchedule(Schedule, word="cosine"):
    """A linear warm-up, then half a cosine from 1 to `final` over the rest of the budget (Loshchilov & Hutter 2017).

    warmup_steps: optimizer steps until the learning rate is reached; below 1, a share of the budget; default 0.
    final: factor at the end of the budget; default 0.0.
    """
    warmup_steps: float | Var | Unset = field(default=UNSET, kw_only=False)
    final: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class EpochDecaySchedule(Schedule, word="epoch_decay"):
    """The learning rate as it is in the first epochs, then made smaller with every epoch (Zaremba et al. 2014).

    after: epochs with the learning rate as it is; default 4.
    factor: what the learning rate is multiplied with in each later epoch; default 0.5.
    warmup_steps: optimizer steps until the learning rate is reached; below 1, a share of the budget; default 0.
    """
    after: int | Var | Unset = field(default=UNSET, kw_only=False)
    factor: float | Var | Unset = UNSET
    warmup_steps: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class InverseSqrtSchedule(Schedule, word="inverse_sqrt"):
    """Linear warm-up to 1, then the inverse square root of the step (Vaswani et al. 2017, section 5.3).

    warmup_steps: optimizer steps until the learning rate is reached; below 1, a share of the budget; default 400.
    """
    warmup_steps: float | Var | Unset = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearSchedule(Schedule, word="linear"):
    """A linear warm-up, then a straight line from 1 to `final` over the rest of the budget.

    warmup_steps: optimizer steps until the learning rate is reached; below 1, a share of the budget; default 0.
    final: factor at the end of the budget; default 0.0.
    """
    warmup_steps: float | Var | Unset = field(default=UNSET, kw_only=False)
    final: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PlateauSchedule(Schedule, word="plateau"):
    """Made smaller each time that `patience` validations in a row bring no better loss.

    factor: what the learning rate is multiplied with; default 0.5.
    patience: validations without a better loss before that; default 2.
    monitor: what has to fall, the loss or the perplexity of the validation; default 'loss'.
    threshold: it has to fall by more than this; default 0.0.
    compare_with: the validation from which it has to fall: the best so far, or the previous one; default 'best'.
    warmup_steps: optimizer steps until the learning rate is reached; below 1, a share of the budget; default 0.
    """
    factor: float | Var | Unset = field(default=UNSET, kw_only=False)
    patience: int | Var | Unset = UNSET
    monitor: Literal["loss", "perplexity"] | Var | Unset = UNSET
    threshold: float | Var | Unset = UNSET
    compare_with: Literal["best", "previous"] | Var | Unset = UNSET
    warmup_steps: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class StaircaseSchedule(Schedule, word="staircase"):
    """Made smaller at given shares of the budget.

    shares: where, as shares of the budget; one that stands there twice counts twice; default [0.5, 0.75].
    factor: what the learning rate is multiplied with at each; default 0.5.
    warmup_steps: optimizer steps until the learning rate is reached; below 1, a share of the budget; default 0.
    """
    shares: Sequence[float | Var] | Var | Unset = field(default=UNSET, kw_only=False)
    factor: float | Var | Unset = UNSET
    warmup_steps: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Specaugment(RecipeObject):
    """Masks over frames and bands, anew in each epoch (Park et al. 2019, section 2, without time warping).

    bands: A mask covers up to so many bands; F of the paper; default 10.
    frames: A mask covers up to so many frames; T of the paper; default 20.
    band_masks: Masks over bands; default 1.
    frame_masks: Masks over frames; default 1.
    share: A mask covers at most this share of the frames; p of the paper; default 1.0.
    """
    bands: int | Var | Unset = UNSET
    frames: int | Var | Unset = UNSET
    band_masks: int | Var | Unset = UNSET
    frame_masks: int | Var | Unset = UNSET
    share: float | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Split(RecipeObject, others="encoders"):
    """One part of the data: two line-aligned text files, or one file with columns (TSV, CSV, JSON lines, Parquet).

    file: A file with columns; `source` and `target` then name its columns.
    source: The file, or the column, with the source text. With several encoders, one key per encoder in its place.
    target: The file, or the column, with the target text.
    weight: How often an epoch has these pairs: 2 is twice each, 0.5 half of them, drawn anew; default 1.0.
    encoders: With several encoders, the text of each by its name, in place of `source`.
    """
    file: str | Var | Unset | None = UNSET
    source: str | Var | Unset | None = UNSET
    target: str | Var
    weight: float | Var | Unset = UNSET
    encoders: Mapping[str, str] | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Table(RecipeObject, others="encoders"):
    """Pairs from tables (TSV, CSV, JSON lines, Parquet) whose columns are text, images, sounds or vectors.

    train: The table to train on.
    val: The table to watch the training with; an integer holds out that many training pairs, evenly spaced.
    test: The table that `evaluate` measures; an integer as for `val`.
    test_sets: Further tables to measure, by name.
    hold_out: sources | pairs: as of `parallel`; files are the same source if they have the same name; default
        'sources'.
    source: A column of a table, and what it holds: text, or the names of files with an image, a sound or vectors.
    target: The column with the target text.
    encoders: With several encoders, the text of each by its name, in place of `source`.
    """
    train: str | Var
    val: str | int | Var | Unset | None = UNSET
    test: str | int | Var | Unset | None = UNSET
    test_sets: Mapping[str, str | Var] | Unset | None = UNSET
    hold_out: Literal["sources", "pairs"] | Var | Unset = UNSET
    source: str | Tablecolumn | Mapping[str, Any] | Var | Unset | None = UNSET
    target: str | Var
    encoders: Mapping[str, str] | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Tablecolumn(RecipeObject):
    """A column of a table, and what it holds: text, or the names of files with an image, a sound or vectors.

    column: The column.
    kind: text | image | audio | vectors (files of NumPy, `.npy`, of frames by numbers); default 'text'.
    size: Of an image: its largest height and width in pixels; a larger one is scaled down to fit.
    channels: Of an image: 1 is grey, 3 is colour; default 1.
    positions: Of an image: whether its rows or its columns of pixels are the positions of the grid. For lines of
        writing `columns`, which are read from left to right; default 'rows'.
    augment: Images a little rotated, scaled and moved, anew in each epoch.
    rate: Of a sound: samples a second; one of another rate is resampled; default 16000.
    features: Of a sound: `{log_mel: {bands: 40}}`.
    normalize: Of a sound: whether each band of an utterance gets mean 0 and variance 1; default True.
    spec_augment: Masks over frames and bands, anew in each epoch (Park et al. 2019, section 2, without time
        warping).
    width: Of vectors: the numbers of a frame.
    """
    column: str | Var
    kind: Literal["text", "image", "audio", "vectors"] | Var | Unset = UNSET
    size: Sequence[int | Var] | Var | Unset | None = UNSET
    channels: Literal[1, 3] | Var | Unset = UNSET
    positions: Literal["rows", "columns"] | Var | Unset = UNSET
    augment: Imageaugment | Mapping[str, Any] | Unset | None = UNSET
    rate: int | Var | Unset = UNSET
    features: Audiofeatures | Mapping[str, Any] | Unset = UNSET
    normalize: bool | Var | Unset = UNSET
    spec_augment: Specaugment | Mapping[str, Any] | Unset | None = UNSET
    width: int | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class AssociativeRecallTask(Task, word="associative_recall"):
    """Recall the item after the one in question, of items of a few vectors: "; 01 11 ; 10 00 ? 01 11" is "10 00".

    bits: digits of a vector, 1 to 12; default 6.
    vectors: vectors of an item; default 3.
    min_length: items of the shortest line, 2 or more; default 2.
    max_length: items of the longest training and validation line; default 6.
    test_lengths: items of the test lines, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    bits: int | Var | Unset = field(default=UNSET, kw_only=False)
    vectors: int | Var | Unset = UNSET
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class BigramFlipTask(Task, word="bigram_flip"):
    """Exchange each two symbols of a sequence: "d a c b" is "a d b c"; an odd last one stays. (Grefenstette et al.
    2015, section 4.1.)

    symbols: different symbols, 2 to 702; default 26.
    min_length: symbols of the shortest sequence; default 1.
    max_length: symbols of the longest training and validation sequence; default 20.
    test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    symbols: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class BinaryAdditionTask(Task, word="binary_addition"):
    """Add two binary numbers of k digits, the least significant first; the sum has k + 1 digits: "1 1 + 1 0" is "0 0
    1".

    min_length: digits of the shortest number; default 1.
    max_length: digits of the longest training and validation number; default 20.
    test_lengths: digits of the test numbers, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    min_length: int | Var | Unset = field(default=UNSET, kw_only=False)
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class BinaryMultiplicationTask(Task, word="binary_multiplication"):
    """Multiply two binary numbers of k digits, the least significant first; the product has 2k digits: "1 1 * 1 1" is
    "1 0 0 1".

    min_length: digits of the shortest number; default 1.
    max_length: digits of the longest training and validation number; default 20.
    test_lengths: digits of the test numbers, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    min_length: int | Var | Unset = field(default=UNSET, kw_only=False)
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CopyTask(Task, word="copy"):
    """Copy a sequence of symbols: "d a c" is "d a c".

    symbols: different symbols, 2 to 702; default 26.
    min_length: symbols of the shortest sequence; default 1.
    max_length: symbols of the longest training and validation sequence; default 20.
    test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    symbols: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class CountingTask(Task, word="counting"):
    """Predict strings of a language that counts, one after another, with n drawn for each: "a a b b a b". No source.

    pattern: anbn | anbncn | anbncndn | anb2n | anbmcnm: how often each letter comes; of the last, c comes n times,
        and a and b together as often; default 'anbn'.
    strings: strings of a line; default 10.
    min_length: the least n; 2 or more for anbmcnm; default 2.
    max_length: the largest n in training and validation; default 15.
    test_lengths: the n of the last string of each test line; null: as in training.
    train: training lines of an epoch; default 20000.
    val: validation lines; default 500.
    test: test lines, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training lines; default True.
    """
    pattern: Literal["anbn", "anbncn", "anbncndn", "anb2n", "anbmcnm"] | Var | Unset = field(default=UNSET, kw_only=False)
    strings: int | Var | Unset = UNSET
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DialectTask(Task, word="dialect"):
    """Copy symbols, the marked ones in one of several dialects: "a c B d a A" is "a c B2 d a A2".

    symbols: different symbols, 2 to 702; default 10.
    dialects: different dialects, 2 to 100; default 4.
    every: how many symbols after one another have one marked among them; 1: each is; default 3.
    min_length: symbols of the shortest sequence; default 1.
    max_length: symbols of the longest training and validation sequence; default 20.
    test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    symbols: int | Var | Unset = field(default=UNSET, kw_only=False)
    dialects: int | Var | Unset = UNSET
    every: int | Var | Unset = UNSET
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DuplicateTask(Task, word="duplicate"):
    """Write a sequence of symbols twice: "d a c" is "d a c d a c".

    symbols: different symbols, 2 to 702; default 26.
    min_length: symbols of the shortest sequence; default 1.
    max_length: symbols of the longest training and validation sequence; default 20.
    test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    symbols: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class DynamicNgramsTask(Task, word="dynamic_ngrams"):
    """Predict bits, each drawn by the few before it from a table of its line's own: "0 1 1 0 1". No source.

    context: how many bits decide about the next, 0 to 12; default 5.
    min_length: bits of the shortest line; default 200.
    max_length: bits of the longest training and validation line; default 200.
    test_lengths: bits of the test lines, to ask for longer ones than were trained; null: as in training.
    train: training lines of an epoch; default 20000.
    val: validation lines; default 500.
    test: test lines, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training lines; default True.
    """
    context: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class IncrementTask(Task, word="increment"):
    """Add one to a binary number of k digits, the least significant first, in k + 1 digits: "1 1 0" is "0 0 1 0". The
    answer is longer than the question.

    min_length: digits of the shortest number; default 1.
    max_length: digits of the longest training and validation number; default 20.
    test_lengths: digits of the test numbers, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    min_length: int | Var | Unset = field(default=UNSET, kw_only=False)
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ModularSumTask(Task, word="modular_sum"):
    """Add numbers, and give each sum so far modulo m: "1 0 1 1" is "1 1 0 1". With a modulus of 2 it is parity.

    modulus: the number m that sums are divided by; the numbers are 0 to m - 1; default 2.
    min_length: numbers of the shortest sequence; default 1.
    max_length: numbers of the longest training and validation sequence; default 20.
    test_lengths: numbers of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    modulus: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class MultiQueryRecallTask(Task, word="multi_query_recall"):
    """Recall the value of each key: "k3 v7 k1 v2 k1 k3" is ". . . . v2 v7".

    keys: different keys, at least as many as the longest line has pairs; default 64.
    values: different values; default 64.
    min_length: pairs of the shortest line; default 2.
    max_length: pairs of the longest training and validation line; default 8.
    test_lengths: pairs of the test lines, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    keys: int | Var | Unset = field(default=UNSET, kw_only=False)
    values: int | Var | Unset = UNSET
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class NumberWordsTask(Task, word="number_words"):
    """Translate number words, English to German by default: "four hundred and twenty-one", "vierhunderteinundzwanzig".

    maximum: the largest number, 99 to 999999; default 999999.
    source: the language that is read: da, de, en, es, fi, fr, hu, it, nl, pl, pt, sv or tr; default 'en'.
    target: the language that is written, one of the same; default 'de'.
    train: training pairs of an epoch; default 30000.
    val: validation pairs; default 500.
    test: test pairs; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default False.
    """
    maximum: int | Var | Unset = field(default=UNSET, kw_only=False)
    source: Literal["da", "de", "en", "es", "fi", "fr", "hu", "it", "nl", "pl", "pt", "sv", "tr"] | Var | Unset = UNSET
    target: Literal["da", "de", "en", "es", "fi", "fr", "hu", "it", "nl", "pl", "pt", "sv", "tr"] | Var | Unset = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ParenthesesTask(Task, word="parentheses"):
    """Name after each bracket of a sequence the one that must close next: "( [ ] )" is ") ] ) .".

    kinds: kinds of brackets, 1 to 4: ( ), [ ], { }, < >; default 2.
    min_length: brackets of the shortest sequence; default 1.
    max_length: brackets of the longest training and validation sequence; default 20.
    test_lengths: brackets of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    kinds: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class PrioritySortTask(Task, word="priority_sort"):
    """Sort vectors by priority, and keep the highest: "01@-0.20 11@0.90 10@0.00" is "11 10".

    bits: digits of a vector, 1 to 12; default 8.
    share: the part of the vectors that is given back, 0 < share <= 1, rounded, and at least one; default 0.8.
    min_length: vectors of the shortest sequence; default 20.
    max_length: vectors of the longest training and validation sequence; default 20.
    test_lengths: vectors of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    bits: int | Var | Unset = field(default=UNSET, kw_only=False)
    share: float | Var | Unset = UNSET
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RamAccessTask(Task, word="ram_access"):
    """Read element k, from 0, of an array that ends with 0: cell 0 holds k and becomes the element. "1 7 9 4 0"
    becomes "9 7 9 4 0".

    cells: cells of a tape, and integers that there are; default 20.
    min_length: integers of the shortest array; default 1.
    max_length: integers of the longest training and validation array; default 8.
    test_lengths: integers of the test arrays, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    cells: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RamCopyTask(Task, word="ram_copy"):
    """Copy an array to the cell behind it, whose number is in cell 0: "3 5 2 0 0" becomes "3 5 2 5 2".

    cells: cells of a tape, and integers that there are; default 20.
    min_length: integers of the shortest array; default 1.
    max_length: integers of the longest training and validation array; default 8.
    test_lengths: integers of the test arrays, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    cells: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RamIncrementTask(Task, word="ram_increment"):
    """Add one to each element of an array that ends with 0. "3 1 4 0 0 0" becomes "4 2 5 0 0 0".

    cells: cells of a tape, and integers that there are; default 20.
    min_length: integers of the shortest array; default 1.
    max_length: integers of the longest training and validation array; default 8.
    test_lengths: integers of the test arrays, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    cells: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class RepeatCopyTask(Task, word="repeat_copy"):
    """Repeat vectors as often as the number behind them says: "01 11 00@-0.50" is "01 11 01 11", where 4 is the most.

    bits: digits of a vector, 1 to 12; default 8.
    min_repeats: the least repetitions; default 1.
    max_repeats: the most repetitions in training and validation, 1 to 100; default 10.
    test_repeats: repetitions in the test, with each of the lengths, at most twice the most; null: as in training.
    min_length: vectors of the shortest sequence; default 1.
    max_length: vectors of the longest training and validation sequence; default 10.
    test_lengths: vectors of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    bits: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_repeats: int | Var | Unset = UNSET
    max_repeats: int | Var | Unset = UNSET
    test_repeats: Sequence[int | Var] | Var | Unset | None = UNSET
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ReverseTask(Task, word="reverse"):
    """Reverse a sequence of symbols: "d a c" is "c a d".

    symbols: different symbols, 2 to 702; default 26.
    min_length: symbols of the shortest sequence; default 1.
    max_length: symbols of the longest training and validation sequence; default 20.
    test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    symbols: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class SortTask(Task, word="sort"):
    """Sort a sequence of symbols alphabetically: "d a c" is "a c d".

    symbols: different symbols, 2 to 702; default 26.
    min_length: symbols of the shortest sequence; default 1.
    max_length: symbols of the longest training and validation sequence; default 20.
    test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    symbols: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class VectorCopyTask(Task, word="vector_copy"):
    """Copy vectors of binary digits: "01 11" is "01 11". (Graves et al. 2014, section 4.1.)

    bits: digits of a vector, 1 to 12; default 8.
    min_length: vectors of the shortest sequence; default 1.
    max_length: vectors of the longest training and validation sequence; default 20.
    test_lengths: vectors of the test sequences, to ask for longer ones than were trained; null: as in training.
    train: training pairs of an epoch; default 20000.
    val: validation pairs; default 500.
    test: test pairs, of each test length; default 1000.
    seed: what the draws start from; default 1.
    endless: whether every epoch has new training pairs; default True.
    """
    bits: int | Var | Unset = field(default=UNSET, kw_only=False)
    min_length: int | Var | Unset = UNSET
    max_length: int | Var | Unset = UNSET
    test_lengths: Sequence[int | Var] | Var | Unset | None = UNSET
    train: int | Var | Unset = UNSET
    val: int | Var | Unset = UNSET
    test: int | Var | Unset = UNSET
    seed: int | Var | Unset = UNSET
    endless: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class BitsTokenizer(Tokenizer, word="bits"):
    """Encode vectors of binary digits, each a word of so many 0 and 1, all of which have ids: nothing is learned.

    size: digits of a vector, 1 to 12; default 8.
    marks: what else can stand in a source, a list of some of ; ? : , ! | / #; default [';'].
    numbers: whether a source's vectors can have numbers; default False.
    """
    size: int | Var | Unset = field(default=UNSET, kw_only=False)
    marks: Sequence[Literal[";", "?", ":", ",", "!", "|", "/", "#"] | Var] | Var | Unset = UNSET
    numbers: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class BPETokenizer(Tokenizer, word="bpe"):
    """Merge byte pairs (BPE, Sennrich et al. 2016): frequent words whole, rare ones in pieces, never `unk`.

    size: ids at most, the four special ones and 256 bytes included; 300 or more; default 8000.
    joint: whether all sides share one vocabulary; default True.
    """
    size: int | Var | Unset = field(default=UNSET, kw_only=False)
    joint: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class ByteTokenizer(Tokenizer, word="byte"):
    """Read the bytes of a text in UTF-8, all of which have ids: nothing is learned, and a text is decoded exactly."""


@dataclass(frozen=True, kw_only=True, repr=False)
class CharTokenizer(Tokenizer, word="char"):
    """Split text into characters, spaces included; the most frequent ones have ids, the others are `unk`.

    size: ids at most, the four special ones included; default 10000.
    joint: whether all sides share one vocabulary; default False.
    """
    size: int | Var | Unset = field(default=UNSET, kw_only=False)
    joint: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class FileTokenizer(Tokenizer, word="file"):
    """Take the tokenizer of another model: `{file: tokenizer.json}` of the library tokenizers, or `{file: x.model}` of
    SentencePiece. A run has a copy of it. The file's special tokens have no ids, and text is never read as one.

    path: the file, looked up under `--data`, then beside the recipe.
    """
    path: str | Var = field(kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class IntegersTokenizer(Tokenizer, word="integers"):
    """Encode whole numbers from 0 in decimal digits, each a word with an id: nothing is learned. Others are `unk`.

    below: how many integers there are: 0 to one less; default 10.
    """
    below: int | Var | Unset = field(default=UNSET, kw_only=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class UnigramTokenizer(Tokenizer, word="unigram"):
    """Split text into the pieces of a unigram language model on bytes (Kudo 2018); never `unk`. Trainings differ.

    size: ids at most, the four special ones and 256 bytes included; 300 or more; default 8000.
    joint: whether all sides share one vocabulary; default True.
    """
    size: int | Var | Unset = field(default=UNSET, kw_only=False)
    joint: bool | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class WordTokenizer(Tokenizer, word="word"):
    """Split text into words and punctuation marks; the most frequent ones have ids, the others are `unk`.

    size: ids at most, the four special ones included; default 10000.
    joint: whether all sides share one vocabulary; default False.
    min_count: a rarer word is `unk`; default 1.
    split: marks | spaces; with `spaces` the text is tokenised already, and a token is what stands between spaces;
        default 'marks'.
    """
    size: int | Var | Unset = field(default=UNSET, kw_only=False)
    joint: bool | Var | Unset = UNSET
    min_count: int | Var | Unset = UNSET
    split: Literal["marks", "spaces"] | Var | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Trainer(RecipeObject):
    """The machine: on what a recipe is trained, by how many processes. All may change on `--resume`, but for
    `limit_val_batches`, which has a say in the weights that are kept.

    accelerator: auto, cpu, gpu, mps, tpu; default 'auto'.
    devices: How many devices of each machine, a list of their numbers, or auto: all; of a launcher's, as many as it
        has started; of CPUs, one, whose threads use the whole machine; default 'auto'.
    num_nodes: How many machines, or auto: as many as the launcher says, else one; default 'auto'.
    strategy: How several devices work together: ddp, each with the whole model; fsdp, each with a part of it; auto
        is ddp where there are several; default 'auto'.
    timeout_minutes: How long a process waits for another before all end, in minutes; default 10.0.
    deterministic: Whether only deterministic algorithms are used: true, false or warn; without it, as torch is set.
    benchmark: Whether cuDNN looks for the fastest algorithms.
    limit_val_batches: The share of the validation that is measured (0.5), or about how many batches of it (3): the
        same sample of its lines, long and short, at every validation; of a carried text its beginning; default 1.0.
    log_every_n_steps: Steps between two rows of the metrics; 10 at most; default 10.
    inference_mode: Whether validation runs in inference mode; default True.
    detect_anomaly: Whether autograd looks for the origin of a NaN; slow; default False.
    profiler: simple, advanced or pytorch.
    enable_progress_bar: Whether progress is shown; default True.
    enable_model_summary: Whether Lightning prints a summary of the model; default False.
    """
    accelerator: Literal["auto", "cpu", "gpu", "mps", "tpu"] | Var | Unset | None = UNSET
    devices: Literal["auto"] | int | Sequence[int | Var] | Var | Unset | None = UNSET
    num_nodes: Literal["auto"] | int | Var | Unset | None = UNSET
    strategy: Literal["auto", "ddp", "fsdp"] | Var | Unset | None = UNSET
    timeout_minutes: float | Var | Unset | None = UNSET
    deterministic: bool | Literal["warn"] | Var | Unset | None = UNSET
    benchmark: bool | Var | Unset | None = UNSET
    limit_val_batches: int | float | Var | Unset | None = UNSET
    log_every_n_steps: int | Var | Unset | None = UNSET
    inference_mode: bool | Var | Unset | None = UNSET
    detect_anomaly: bool | Var | Unset | None = UNSET
    profiler: Literal["simple", "advanced", "pytorch"] | Var | Unset | None = UNSET
    enable_progress_bar: bool | Var | Unset | None = UNSET
    enable_model_summary: bool | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Training(RecipeObject):
    """How the model is trained. The first budget that is reached ends it; without any, `max_epochs` is 10.

    optimizer: Optimizer; default 'adam'.
    schedule: How the learning rate changes over the budget; default 'constant'.
    parameter_groups: Blocks with a learning rate or weight decay of their own, or frozen. A parameter that several
        share has the smallest: with tied embeddings, a frozen `encoder` freezes the output.
    max_steps: Updates of the weights.
    max_epochs: Passes over the training data.
    max_minutes: Minutes of training; on a CPU, of the process's own time over its threads.
    tokens_per_batch: Padded target positions of one update, over all devices and accumulation; default 4096.
    window: Of `data.text`, how many tokens of the text one row has, wherever its documents end. Each document, and
        each line that is scored or written, follows the end of another. Without it, a row is a document.
    carry: Whether the state goes from one window to the next (truncated back-propagation through time): the text is
        cut into as many streams as there are rows in a batch, `tokens_per_batch` / `window`; default False.
    label_smoothing: The share of the probability that is spread over the whole vocabulary; default 0.0.
    clip_norm: The gradient is scaled down to this norm if it is larger.
    gradient_noise: Normal noise on every gradient, after clipping (Neelakantan et al. 2015, section 3).
    scheduled_sampling: Some tokens of the target so far are the model's own, as they are when it translates (Bengio
        et al. 2015).
    initialization: What the matrices of the blocks are at first; not where a run starts from another one's weights;
        default 'default'.
    accumulate: Gradient accumulation steps; the update is the same, with less memory; default 1.
    validate_every: Steps between validations; once an epoch without it.
    validation_sample: What is decoded at each validation.
    early_stopping: Ends the training when a metric has stopped getting better, or is good enough.
    curriculum: Short pairs first: an epoch has those of at most so many tokens, its level, which rises as they are
        mastered.
    average_checkpoints: How many of the last checkpoints are averaged at the end; 1 keeps the best one; default 1.
    ema: Exponential moving average of the weights of all steps (EMA). Validations, `--checkpoint` and the final
        weights are of the average; the training goes on with its own.
    asgd: Averaged SGD, with the trigger of NT-ASGD (Merity et al. 2018): the mean of the weights of all steps since
        the validation has stalled. Validations, `--checkpoint` and the final weights are of the mean; the training
        goes on with its own. The paper's optimizer is `sgd`.
    checkpoints_gib: Disk space for checkpoints, in GiB. As many as fit are kept, the oldest deleted first, the last
        and the best never; without it, the last two and the best.
    precision: Floating-point precision. `bf16-mixed` is fast on a GPU and on a CPU with AVX-512, slow on others;
        default 32.
    compile: Whether the model is compiled first; pays on a GPU, after a minute or more, and not where there are
        loops over positions (rnn, recurrent, ...), of which each length is compiled anew; default False.
    workers: Processes that prepare batches beside the training; the result is the same; default 0.
    seed: Seed of all random number generators; default 1.
    """
    optimizer: AnyOptimizer | Unset | None = UNSET
    schedule: AnySchedule | Unset | None = UNSET
    parameter_groups: Sequence[Parametergroup | Mapping[str, Any]] | Var | Unset | None = UNSET
    max_steps: int | Var | Unset | None = UNSET
    max_epochs: int | Var | Unset | None = UNSET
    max_minutes: float | Var | Unset | None = UNSET
    tokens_per_batch: int | Var | Unset | None = UNSET
    window: int | Var | Unset | None = UNSET
    carry: bool | Var | Unset | None = UNSET
    label_smoothing: float | Var | Unset | None = UNSET
    clip_norm: float | Var | Unset | None = UNSET
    gradient_noise: GradientNoise | Mapping[str, Any] | Unset | None = UNSET
    scheduled_sampling: ScheduledSampling | Mapping[str, Any] | Unset | None = UNSET
    initialization: AnyInitialization | Unset | None = UNSET
    accumulate: int | Var | Unset | None = UNSET
    validate_every: int | Var | Unset | None = UNSET
    validation_sample: Validationsample | Mapping[str, Any] | Unset | None = UNSET
    early_stopping: EarlyStopping | Mapping[str, Any] | Unset | None = UNSET
    curriculum: Curriculum | Mapping[str, Any] | Unset | None = UNSET
    average_checkpoints: int | Var | Unset | None = UNSET
    ema: Ema | Mapping[str, Any] | Unset | None = UNSET
    asgd: Asgd | Mapping[str, Any] | Unset | None = UNSET
    checkpoints_gib: float | Var | Unset | None = UNSET
    precision: Literal[32, "bf16-mixed", "16-mixed", "bf16-true", 64] | Var | Unset | None = UNSET
    compile: bool | Var | Unset | None = UNSET
    workers: int | Var | Unset | None = UNSET
    seed: int | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class Validationsample(RecipeObject):
    """Lines that are decoded at each validation. Their scores are called `val_sample/bleu` and so on; losses are of
    all lines, and so are the scores at the end of the training, `val/bleu`.

    lines: How many of those with a source, from the beginning of the validation part; all with `null`; default 200.
    decoding: Decoding method; the one of the recipe may be slower; default 'greedy'.
    """
    lines: int | Var | Unset | None = UNSET
    decoding: AnyDecoder | Unset = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class WandB(RecipeObject):
    """Where Weights & Biases keeps the run. It goes online when the user is logged in; `WANDB_MODE` is obeyed.

    project: The project; `seqcomposer` without it.
    name: The run's name; the recipe's without it.
    entity: The user or team; the default one of the login without it.
    group: What the run belongs to; for a sweep's trial, the sweep.
    tags: Tags, beside the families of blocks that the model has, such as attention or recurrence.
    config: Keys of the run's config beside the recipe's own; for a sweep's trial, the values of its axes.
    artifact: final logs the final model, packed, as the artifact model-ID, which `seqcomposer pull wandb:` takes;
        it is as large as the weights. none logs no model; default 'final'.
    mode: online, offline or disabled; by the login without it.
    """
    project: str | Var | Unset | None = UNSET
    name: str | Var | Unset | None = UNSET
    entity: str | Var | Unset | None = UNSET
    group: str | Var | Unset | None = UNSET
    tags: Sequence[str | Var] | Var | Unset | None = UNSET
    config: Mapping[str, str | float | bool | Var] | Unset | None = UNSET
    artifact: Literal["final", "none"] | Var | Unset | None = UNSET
    mode: Literal["online", "offline", "disabled"] | Var | Unset | None = UNSET


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightedFile(RecipeObject):
    """A file of a corpus with its weight.

    file: A file, or a pattern with `*`.
    weight: How often an epoch has its documents or windows: 2 is twice each, 0.5 half of them, drawn anew; default
        1.0.
    """
    file: str | Var
    weight: float | Var | Unset = UNSET


def read(path: str | Path) -> Recipe:
    """Read a recipe's file as objects, as it is written: with `vars` and `extends`, without comments.

    What fits no class stays plain data, and `.recipe()` reports what is wrong with it. Raises RecipeError if the file
    is no recipe at all.
    """
    recipe: Recipe = read_recipe(path, Recipe)
    return recipe


__all__ = [
    "Activation", "ActivationDefaults", "ActiveMemory", "ActiveMemoryDefaults", "Adadelta", "Adagrad", "Adam", "AdamW",
    "AdaptiveOutputHead", "Add", "AddDefaults", "Asgd", "AssociativeRecallTask", "Audiofeatures", "BPETokenizer",
    "BabiData", "Beam", "BigramFlipTask", "BinaryAdditionTask", "BinaryMultiplicationTask", "BitsTokenizer", "Block",
    "ByteTokenizer", "Cgru", "CgruDefaults", "CharLstmOutputHead", "CharTokenizer", "CharactersEmbedding",
    "CnnOutputHead", "Concat", "ConcatColumns", "ConstantSchedule", "Conv", "Conv2d", "Conv2dDefaults", "ConvDefaults",
    "CopyTask", "CosineSchedule", "CountingTask", "CrossAttention", "CrossAttentionDefaults", "Ctc", "Curriculum",
    "Data", "Decoder", "DefaultInitialization", "DeltaNet", "DeltaNetDefaults", "DequeMemory", "DequeMemoryDefaults",
    "DialectTask", "DifferentialAttention", "DifferentialAttentionDefaults", "DiscreteStacks", "DiscreteStacksDefaults",
    "Dropout", "DuplicateTask", "DynamicNgramsTask", "EarlyStopping", "Ema", "Embedding", "EpisodicMemory",
    "EpisodicMemoryDefaults", "EpochDecaySchedule", "Evaluation", "FeedForward", "FeedForwardDefaults", "FileTokenizer",
    "Flatten", "GatedDeltaNet", "GatedDeltaNetDefaults", "GatedLinearAttention", "GatedLinearAttentionDefaults",
    "GradientNoise", "Greedy", "Grid", "GridDefaults", "Highway", "HubData", "Identity", "IdentityOutputHead",
    "Imageaugment", "IncrementTask", "Initialization", "IntegersTokenizer", "InverseSqrtSchedule", "LatentAttention",
    "LatentAttentionDefaults", "LearnedEmbedding", "Linear", "LinearAttention", "LinearAttentionDefaults",
    "LinearDefaults", "LinearEmbedding", "LinearOutputHead", "LinearSchedule", "Logging", "Logmel", "LongConv",
    "LongConvDefaults", "Mamba", "Mamba2", "Mamba2Defaults", "MambaDefaults", "Maxout", "MaxoutDefaults", "Mbr",
    "Measuredsplit", "MemoryNetwork", "MemoryNetworkDefaults", "MixtureOfExperts", "MixtureOfExpertsDefaults", "Mlstm",
    "MlstmDefaults", "Model", "ModularSumTask", "MultiQueryRecallTask", "Multiply", "NoInput", "NoInputDefaults",
    "Norm", "NormDefaults", "Nram", "NramDefaults", "Ntm", "NtmDefaults", "NumberWordsTask", "OneHotEmbedding",
    "Optimizer", "OrthogonalInitialization", "Output", "OutputHead", "Parallel", "ParallelData", "ParallelDefaults",
    "Parametergroup", "ParenthesesTask", "Patches", "PatchesDefaults", "PlateauSchedule", "Pool", "Pool2d",
    "Pool2dDefaults", "PoolDefaults", "PoolHierarchical", "PoolHierarchicalDefaults", "Positions", "PositionsDefaults",
    "PrioritySortTask", "Pyramid", "PyramidDefaults", "QueueMemory", "QueueMemoryDefaults", "RMSprop", "RamAccessTask",
    "RamCopyTask", "RamIncrementTask", "Read", "Recipe", "Recurrent", "Repeat", "RepeatCopyTask", "RepeatDefaults",
    "Residual", "ResidualDefaults", "Retention", "RetentionDefaults", "Reverse", "ReverseTask", "RgLru",
    "RgLruDefaults", "Rnn", "RnnCell", "RnnCellDefaults", "RnnDefaults", "Rows", "Rwkv7", "Rwkv7Defaults", "SGD",
    "Sample", "SampledOutputHead", "Scale", "ScaleDefaults", "Schedule", "ScheduledSampling", "SelectColumn",
    "SelectColumnDefaults", "SelfAttention", "SelfAttentionDefaults", "SigmoidOutputHead", "Slstm", "SlstmDefaults",
    "SortTask", "SourceState", "SourceStateDefaults", "Specaugment", "Split", "SplitColumns", "StackMemory",
    "StackMemoryDefaults", "StaircaseSchedule", "SumColumns", "SupportingFacts", "SupportingFactsDefaults", "Table",
    "Tablecolumn", "Task", "TextData", "Tokenizer", "Trainer", "Training", "UNSET", "UniformInitialization",
    "UniformScalingInitialization", "UnigramTokenizer", "Unset", "Use", "UseDefaults", "Validationsample", "Var",
    "VectorCopyTask", "Viterbi", "WandB", "WeightedFile", "WindowMemory", "WindowMemoryDefaults", "WordTokenizer",
    "read",
]
