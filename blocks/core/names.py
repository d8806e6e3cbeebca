"""Named outputs: which names can be read where. A name is given once in an encoder or decoder."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from blocks.core.contract import BlockError, Named, Stream

RESERVED = frozenset({"input", "prev", "tape", "zeros", "learned"})
"""Words of the language: `as` cannot give them."""


class Names:
    """What can be read at one point of one encoder or decoder.

    `visible` is what can be read here, `given` what is taken, `declared` every name that the encoder or decoder gives
    somewhere, and `reserved` what cannot be given.
    """

    def __init__(self, visible: Mapping[str, Named], given: set[str], declared: frozenset[str],
                 reserved: frozenset[str]) -> None:  # fmt: skip
        self.visible = dict(visible)
        self.given, self.declared, self.reserved = given, declared, reserved

    @classmethod
    def of_input(cls, stream: Stream, declared: Iterable[str] = (), reserved: Iterable[str] = ()) -> Names:
        """The names at the top of an encoder or decoder: `input`, the embedded tokens."""
        return cls({"input": Named(stream)}, set(), frozenset(declared), RESERVED | frozenset(reserved))

    def give(self, name: str, named: Named) -> None:
        """Lets every later block read `named` as `name`; raises BlockError where the name is taken."""
        if name in self.reserved:
            raise BlockError("as", f"`{name}` is a word of the language and cannot be given as a name", code="name",
                             fix="choose another name")  # fmt: skip
        if name in self.given:
            raise BlockError("as", f"the name `{name}` is given twice", code="name",
                             fix="give each output a name of its own")  # fmt: skip
        self.given.add(name)
        self.visible[name] = named

    def read(self, name: str, setting: str, others: Mapping[str, Any] | None = None) -> Named:
        """What `name` stands for; raises BlockError with the nearest name."""
        if name not in self.visible:
            raise self.unknown(name, setting, others or {})
        return self.visible[name]

    def unknown(self, name: str, setting: str, others: Mapping[str, Any], what: str = "nothing here") -> BlockError:
        """The error for a name that nothing readable has."""
        if name in self.declared and what == "nothing here":
            return BlockError(setting, f"`{name}` cannot be read here: it is named later, or in another branch",
                              code="name", fix="read it after the block, or after the merge")  # fmt: skip
        readable = list(others) if what != "nothing here" else [*self.visible, *others]
        close = difflib.get_close_matches(name, readable, n=1, cutoff=0.5)
        meant = f"; did you mean `{close[0]}`?" if close else ""
        listed = ", ".join(f"`{each}`" for each in readable)
        return BlockError(setting, f"{what} is called `{name}`{meant}", code="name",
                          fix=f"what can be read here: {listed}" if listed else "nothing can be read here")  # fmt: skip

    def fork(self) -> Names:
        """The names as a branch sees them: what is given there is not seen by its siblings."""
        return Names(self.visible, self.given, self.declared, self.reserved)

    def again(self) -> Names:
        """The names as the next iteration of a repeat sees them: it gives the same names once more."""
        return Names(self.visible, set(self.given), self.declared, self.reserved)

    def join(self, branches: Iterable[Names]) -> None:
        """After a merge, what the branches gave can be read."""
        for branch in branches:
            self.visible.update(branch.visible)
            self.given.update(branch.given)
