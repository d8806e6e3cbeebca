"""Llama (Touvron et al. 2023, arXiv 2302.13971), with Mistral, Qwen 2 and SmolLM, which are alike.

A decoder of residual attention with rotary positions and SwiGLU, root-mean-square norms before
each, and no biases but those that the configuration names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from composer.importers.checkpoint import Checkpoint, Config
from composer.importers.family import Family, Theirs, language_model_roles, layers_of, part_of
from composer.importers.vocabulary import Roles, Vocabulary
from composer.recipe.yaml_reader import parse, to_data

ROTARY_BASE = 10_000.0
UNREAD = ("max_position_embeddings", "max_window_layers", "rope_theta", "rope_scaling")
"""Keys that say nothing of what is computed, or that `rotary_settings` reads."""
TEMPLATE = """\
model:
  width: {width}
  embedding: {{learned: {{scale: false}}}}
  decoder:
    - repeat:
        times: {layers}
        stack:
          - residual: [norm: {norm}, self_attention: {attention}]
          - residual: [norm: {norm}, feed_forward: {feed_forward}]
    - norm: {norm}
{output}"""


@dataclass(frozen=True)
class Llama(Family):
    """Sizes and settings of a model, as config.json says them.

    window: Positions that are seen; 0 for all. rotary: The settings of `rotary`, as YAML.
    """

    model_types: ClassVar = ("llama", "mistral", "qwen2")
    sides: ClassVar = ("target",)
    constants: ClassVar = r".*\.rotary_emb\.inv_freq"
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    eps: float
    bias: str
    has_feed_forward_bias: bool
    window: int
    rotary: str
    is_tied: bool

    @classmethod
    def read(cls, config: Config) -> Llama:
        kind = config.value("model_type", "")
        heads, width = config.count("num_attention_heads"), config.count("hidden_size")
        config.expect("hidden_act", "silu")
        config.expect("attention_dropout", 0.0)
        layers = config.count("num_hidden_layers")
        full = ["full_attention"] * layers
        window = 0
        if kind == "qwen2":
            config.expect("use_sliding_window", False)
            config.ignore("sliding_window")
            config.expect("layer_types", full)
            bias = "qkv"
        else:
            window = config.value("sliding_window", 0)
            config.expect("layer_types", full, ["sliding_attention"] * layers)
            bias = "all" if config.value("attention_bias", False) else "none"
        model = cls(
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=config.count("num_key_value_heads", heads),
            head_width=config.count("head_dim", width // heads),
            hidden=config.count("intermediate_size"),
            eps=config.value("rms_norm_eps", 1e-6),
            bias=bias,
            has_feed_forward_bias=config.value("mlp_bias", False),
            window=window,
            rotary=rotary_settings(config),
            is_tied=config.value("tie_word_embeddings", False),
        )
        config.ignore(*UNREAD)
        return model

    @classmethod
    def of_recipe(cls, model: Mapping[str, Any]) -> Llama:
        times, (first, second) = layers_of(model["decoder"], 0)
        attention = part_of(first, 1, "self_attention")
        network = part_of(second, 1, "feed_forward")
        heads, width = attention["heads"], model["width"]
        biases = {True: "all", False: "none"}
        return cls(
            width=width,
            layers=times,
            heads=heads,
            kv_heads=attention["kv_heads"] or heads,
            head_width=attention["head_width"] or width // heads,
            hidden=network["hidden"] or 4 * width,
            eps=part_of(first, 0, "norm")["eps"],
            bias=biases.get(attention["bias"], attention["bias"]),
            has_feed_forward_bias=network["bias"],
            window=attention["window"] or 0,
            rotary=yaml_of(attention["rotary"]),
            is_tied=model["output"]["tie"] == ["target"],
        )

    def as_exported(self) -> Llama:
        # transformers reads every tokenizer of a Qwen model as Qwen's own
        return replace(self, bias="all") if self.bias == "qkv" else self

    def config(self) -> dict[str, object]:
        if self.window and (self.bias != "none" or self.has_feed_forward_bias):
            raise ValueError("Mistral has no biases")
        config: dict[str, object] = {
            "model_type": "mistral" if self.window else "llama",
            "architectures": ["MistralForCausalLM" if self.window else "LlamaForCausalLM"],
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "intermediate_size": self.hidden,
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            "rope_parameters": rotary_config(self.rotary),
            "tie_word_embeddings": self.is_tied,
        }
        if self.window:
            return config | {"sliding_window": self.window}
        biases = {"attention_bias": self.bias != "none", "mlp_bias": self.has_feed_forward_bias}
        return config | biases

    def roles(self, checkpoint: Checkpoint) -> Roles:
        return language_model_roles(checkpoint)

    def recipe(self) -> str:
        attention = [f"heads: {self.heads}"]
        if self.kv_heads != self.heads:
            attention.append(f"kv_heads: {self.kv_heads}")
        if self.head_width * self.heads != self.width:
            attention.append(f"head_width: {self.head_width}")
        if self.window:
            attention.append(f"window: {self.window}")
        attention += ["positions: rotary", f"bias: {self.bias}"]
        if self.rotary:
            attention.append(f"rotary: {self.rotary}")
        bias = str(self.has_feed_forward_bias).lower()
        return TEMPLATE.format(
            width=self.width,
            layers=self.layers,
            norm=f"{{kind: rms, eps: {self.eps:g}}}",
            attention=f"{{{', '.join(attention)}}}",
            feed_forward=f"{{hidden: {self.hidden}, activation: swiglu, bias: {bias}}}",
            output="  output: {tie: [target]}\n" if self.is_tied else "",
        )

    def weights(self, theirs: Theirs, vocabulary: Vocabulary, rows: int) -> dict[str, Tensor]:
        embedding = theirs.take("model.embed_tokens.weight", rows, self.width)
        ours = {"embedding.weight": vocabulary.embedding(embedding)}
        for layer in range(self.layers):
            path, name = f"decoder.blocks.0.stacks.{layer}.blocks", f"model.layers.{layer}"
            attention, feed_forward = f"{path}.0.stack.blocks", f"{path}.1.stack.blocks"
            ours |= {
                f"{attention}.0.normalise.weight": theirs.take(
                    f"{name}.input_layernorm.weight", self.width
                ),
                f"{feed_forward}.0.normalise.weight": theirs.take(
                    f"{name}.post_attention_layernorm.weight", self.width
                ),
                **self.attention(theirs, f"{name}.self_attn", f"{attention}.1"),
                **self.feed_forward(theirs, f"{name}.mlp", f"{feed_forward}.1"),
            }
        ours["decoder.blocks.1.normalise.weight"] = theirs.take("model.norm.weight", self.width)
        ours["output.bias"] = vocabulary.bias()
        if not self.is_tied:
            output = theirs.take("lm_head.weight", rows, self.width)
            ours["output.weight"] = vocabulary.embedding(output)
        elif "lm_head.weight" in theirs:
            theirs.take_copy("lm_head.weight", embedding)
        return ours

    def attention(self, theirs: Theirs, name: str, path: str) -> dict[str, Tensor]:
        """Return the tensors of an attention."""
        inner = self.heads * self.head_width
        parts = (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads))

        def joined(kind: str, *columns: int) -> Tensor:
            rows = []
            for part, heads in parts:
                tensor = theirs.take(f"{name}.{part}.{kind}", heads * self.head_width, *columns)
                rows.append(tensor if part == "v_proj" else in_pairs(tensor, heads))
            return torch.cat(rows)  # (inner + 2 shared, ...)

        ours = {
            f"{path}.project.weight": joined("weight", self.width),
            f"{path}.merge.weight": theirs.take(f"{name}.o_proj.weight", self.width, inner),
        }
        if self.bias != "none":
            ours[f"{path}.project.bias"] = joined("bias")
        if self.bias == "all":
            ours[f"{path}.merge.bias"] = theirs.take(f"{name}.o_proj.bias", self.width)
        return ours

    def feed_forward(self, theirs: Theirs, name: str, path: str) -> dict[str, Tensor]:
        """Return the tensors of a feed-forward network."""
        gate = theirs.take(f"{name}.gate_proj.weight", self.hidden, self.width)
        up = theirs.take(f"{name}.up_proj.weight", self.hidden, self.width)
        down = theirs.take(f"{name}.down_proj.weight", self.width, self.hidden)
        ours = {f"{path}.expand.weight": torch.cat((gate, up)), f"{path}.contract.weight": down}
        if self.has_feed_forward_bias:
            gate = theirs.take(f"{name}.gate_proj.bias", self.hidden)
            up = theirs.take(f"{name}.up_proj.bias", self.hidden)
            ours[f"{path}.expand.bias"] = torch.cat((gate, up))
            ours[f"{path}.contract.bias"] = theirs.take(f"{name}.down_proj.bias", self.width)
        return ours


def in_pairs(tensor: Tensor, heads: int) -> Tensor:
    """Return the rows of queries or keys in the order in which we turn them.

    They turn feature i of a head's n with i + n/2, and we turn 2i with 2i + 1. (H n, ...) -> (H n,
    ...)
    """
    halves = tensor.unflatten(0, (heads, 2, -1))  # (H, 2, n/2, ...)
    return halves.transpose(1, 2).flatten(0, 2)


def rotary_settings(config: Config) -> str:
    """Return the settings of `rotary` as YAML, "" for the defaults. Raises RunError."""
    new = config.part("rope_parameters")
    scaling = new or config.part("rope_scaling")
    base = (new or config).value("rope_theta", ROTARY_BASE)
    settings = [] if base == ROTARY_BASE else [f"base: {base:.17g}"]
    if scaling is not None and (stretched := rotary_scaling(scaling)):
        settings.append(f"scaling: {stretched}")
    return f"{{{', '.join(settings)}}}" if settings else ""


def rotary_scaling(config: Config) -> str:
    """Return the settings of `scaling` as YAML, "" for none. Raises RunError."""
    key = "rope_type" if "rope_type" in config else "type"
    config.expect(key, "default", "linear", "llama3", "yarn")
    config.ignore("rope_theta")
    kind = config.value(key, "default")
    if kind == "default":
        config.finish()
        return ""
    settings = {"factor": config.value("factor", 1.0)}
    names = ROTARY_KEYS[kind]
    for theirs, ours in names.items():
        if theirs in config:
            default = 1 if ours == "original_length" else 1.0
            settings[ours] = config.value(theirs, default)
    if kind == "yarn":
        config.expect("truncate", True)
    config.finish()
    listed = ", ".join(f"{name}: {value:.17g}" for name, value in settings.items())
    return f"{{{kind}: {{{listed}}}}}"


ROTARY_KEYS: dict[str, dict[str, str]] = {
    "linear": {},
    "llama3": {
        "original_max_position_embeddings": "original_length",
        "low_freq_factor": "low_factor",
        "high_freq_factor": "high_factor",
    },
    "yarn": {
        "original_max_position_embeddings": "original_length",
        "beta_fast": "fast",
        "beta_slow": "slow",
        "attention_factor": "attention_factor",
    },
}
"""Our names of the numbers of a scaling, by its kind and theirs."""


def yaml_of(rotary: Mapping[str, Any] | None) -> str:
    """Return the settings of `rotary` as `rotary_settings` writes them."""
    if rotary is None:
        return ""
    settings = [] if rotary["base"] == ROTARY_BASE else [f"base: {rotary['base']:.17g}"]
    if rotary["share"] != 1.0:
        raise ValueError("a share of the features is turned")
    for kind, values in (rotary["scaling"] or {}).items():
        if values is not None:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items() if value)
            settings.append(f"scaling: {{{kind}: {{{listed}}}}}")
    return f"{{{', '.join(settings)}}}" if settings else ""


def rotary_config(rotary: str) -> dict[str, object]:
    """Return `rope_parameters` of the settings of `rotary`, as YAML."""
    settings = to_data(parse(rotary or "{}", "rotary"))
    config: dict[str, object] = {"rope_theta": settings.get("base", ROTARY_BASE)}
    scaling = settings.get("scaling")
    if scaling is None:
        return {**config, "rope_type": "default"}
    ((kind, values),) = scaling.items()
    names = {ours: theirs for theirs, ours in ROTARY_KEYS[kind].items()} | {"factor": "factor"}
    numbers = {names[name]: value for name, value in values.items() if name in names}
    return {**config, "rope_type": kind, **numbers}
