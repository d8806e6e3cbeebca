"""Generate `composer.recipe.classes`: the recipe language as Python classes."""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from composer.recipe.registry import CHOICES
from composer.recipe.schema_generator import ENCODER_KEYS
from composer.recipe.schema_reader import VARIABLE, Schema, allowed_words, ref_name

WIDTH = 116
BLOCK = "block"
BASES = {BLOCK: "Block", **{table: choice.base for table, choice in CHOICES.items()}}
"""The class of everything among which a table's word chooses."""
SPELLINGS = {
    **{name.lower(): name for name in ("EarlyStopping", "GradientNoise", "ScheduledSampling", "WandB", "AdamW", "SGD")},
    **{name.lower(): name for name in ("RMSprop", "BPE")},
    "parallel": "ParallelData",
    "hub": "HubData",
    "babi": "BabiData",
    "corpus": "TextData",
    "weightedfile": "WeightedFile",
}
"""Sections and words whose class is not simply their words put together."""
MERGED = ("recipe", "data", "model", "training", "trainer", "logging", "output", "wandb")
"""Sections that lie over an inherited one: nothing in them is required, and `None` removes."""
OTHERS = "encoders"
RESERVED_NAMES = ("plain", "yaml", "save", "recipe", "word", "others")
"""What the classes have beside settings."""
SCALARS = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "None"}

CLASSES_PATH = Path(__file__).with_name("classes.py")
HEAD, READ = Path(__file__).with_name("classes.template.txt").read_text(encoding="utf-8").split("@classes@\n")


def generate(rules: Schema) -> str:
    """Return the text of the module for a schema. Raise ValueError if two words would be one class."""
    writer = _Writer(rules)
    parts = [HEAD, *writer.bases(), *map(writer.class_of, writer.names), READ]
    names = [*BASES.values(), *writer.names.values()]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two words would be the class {sorted(twice)}")
    exported = ", ".join(f'"{name}"' for name in sorted([*names, "UNSET", "Unset", "Var", "read"]))
    return "\n\n".join([*parts, f"__all__ = [\n{textwrap.indent(textwrap.fill(exported, WIDTH), '    ')},\n]\n"])


def class_name(entry: str) -> str:
    """Return the class of a definition of the schema: `schedules.linear` is LinearSchedule."""
    table, _, word = entry.rpartition(".")
    if table == "defaults":
        return f"{_camel(word)}Defaults"
    if table == BLOCK:
        return _camel(word)
    suffix = CHOICES[table].base if table and CHOICES[table].has_suffix else ""
    return SPELLINGS.get(word, _camel(word)) + suffix


def field_name(key: str) -> str:
    """Return what a key is called in Python: `from` is `from_`."""
    return f"{key}_" if keyword.iskeyword(key) or key in RESERVED_NAMES else key


def _camel(word: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in word.replace("-", "_").split("_"))


class _Writer:
    """Writes the parts of the module from a schema."""

    def __init__(self, rules: Schema) -> None:
        self.rules, self.defs = rules, rules["$defs"]
        entries = [name for name, schema in self.defs.items() if "x-choice" not in schema and name != "variable"]
        self.names = {"recipe": "Recipe", **{entry: class_name(entry) for entry in entries}}
        self.sections = {entry: self.defs[entry]["properties"] for entry in entries if "." not in entry}

    def bases(self) -> Iterator[str]:
        """Yield a base class for all blocks, one for all optimizers, ..., and the types that each may be written as."""
        lines = []
        for table, name in BASES.items():
            yield f'class {name}(RecipeObject):\n    """{self.defs[table]["description"]}"""\n'
            bare = ", ".join(f'"{word}"' for word in allowed_words(self.defs[table]))
            lines.append(f"Any{name} = {name} | Literal[{bare}] | Var | Mapping[str, Any]")
        yield "\n".join([*lines, "Stack = Sequence[AnyBlock]", '"""Blocks, the first one first."""\n'])

    def class_of(self, entry: str) -> str:
        """Return the class of a word or a section."""
        described = self.rules if entry == "recipe" else self.defs[entry]
        table, _, word = entry.rpartition(".")
        base = "RecipeObjectRoot" if entry == "recipe" else BASES.get(table, "RecipeObject")
        extra = f', word="{word}"' if table in BASES else ""
        is_open = entry in map(str.lower, ENCODER_KEYS)
        extra += f', others="{OTHERS}"' if is_open else ""
        keys = sorted(described["properties"], key=lambda key: key != described.get("x-first"))
        lines = [self._field(entry, described, key) for key in keys]
        lines += [f"{OTHERS}: Mapping[str, str] | Unset = UNSET"] if is_open else []
        body = "\n".join(f"    {line}" for line in lines)
        head = f"@dataclass(frozen=True, kw_only=True, repr=False)\nclass {self.names[entry]}({base}{extra}):"
        return f"{head}\n{_docstring(described, is_open)}\n{body}" + ("\n" if body else "")

    def _field(self, entry: str, described: Schema, key: str) -> str:
        is_merged = entry in MERGED or entry.startswith("defaults.")
        is_needed = key in described.get("required", ()) and not is_merged
        types = list(self._types(described["properties"][key]))
        types += ["None"] if is_merged else []
        types += [] if is_needed else ["Unset"]
        head = f"{field_name(key)}: {_union(types)}"
        if key == described.get("x-first"):
            return f"{head} = field({'' if is_needed else 'default=UNSET, '}kw_only=False)"
        default = "1" if (entry, key) == ("recipe", "recipe") else "UNSET"
        return head if is_needed else f"{head} = {default}"

    def _types(self, setting: Schema) -> Iterator[str]:
        """Yield the types of a setting, as Python writes them."""
        if ref_name(setting) in BASES:
            yield f"Any{BASES[ref_name(setting)]}"
            return
        if setting.get("x-open") and "anyOf" not in setting:
            yield "Any"
            return
        branches = setting.get("anyOf", [setting])
        yield from (self._type(branch, setting) for branch in branches if branch != VARIABLE)
        if any(branch == VARIABLE or branch.get("type") == "string" for branch in branches):
            yield "Var"

    def _type(self, branch: Schema, setting: Schema) -> str:
        """Return the type of one JSON type of a setting."""
        if "enum" in branch:
            words = (f'"{word}"' if isinstance(word, str) else repr(word) for word in branch["enum"])
            return f"Literal[{', '.join(words)}]"
        if branch.get("type") == "array":
            items = setting["items"]
            return "Stack" if ref_name(items) == BLOCK else f"Sequence[{_union(self._types(items))}]"
        if branch.get("type") != "object" and "$ref" not in branch:
            return SCALARS[branch["type"]]
        properties = setting.get("properties")
        section = ref_name(setting) or next((name for name, keys in self.sections.items() if keys == properties), "")
        if section:
            return f"{self.names[section]} | Mapping[str, Any]"
        values = setting.get("additionalProperties")
        if isinstance(values, dict) and not values.get("x-open"):
            return f"Mapping[str, {_union(self._types(values))}]"
        return "Mapping[str, Any]"


def _union(types: Iterable[str]) -> str:
    names = sorted(dict.fromkeys(types), key=lambda name: name == "None")
    return "Any" if "Any" in names else " | ".join(names)


def _docstring(described: Schema, is_open: bool) -> str:
    summary = described["description"]
    if summary.startswith("The defaults of"):  # the block's own class describes the settings
        return f'    """{summary.partition(". ")[0]}."""'
    keys = []
    for key, setting in described["properties"].items():
        meaning, default = setting.get("description", "").rstrip(".") or field_name(key), setting.get("default")
        meaning += f"; default {default!r}" if default not in (None, {}, []) else ""
        keys.append(f"{field_name(key)}: {meaning}.")
    keys += [f"{OTHERS}: With several encoders, the text of each by its name, in place of `source`."] if is_open else []
    lines = [line for text in keys for line in textwrap.wrap(text, WIDTH - 4, subsequent_indent="    ")]
    body = "\n".join(["", "", *lines, ""]) if lines else ""
    doc = ('"""' + "\n".join(textwrap.wrap(summary, WIDTH - 4)) + body).replace("\\", "\\\\") + '"""'
    return "\n".join(f"    {line}".rstrip() for line in doc.splitlines())
