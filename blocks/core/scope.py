"""Scope of named outputs: which names a block can read. A name is defined once in an encoder or
decoder.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from blocks.core.contract import BlockError, Fix, Named, Rename, Stream

FOLLOWS = "follows"
"""Code of an error that only follows from a block that was refused: that block's is reported, and
this one is not.
"""
RESERVED = frozenset({"input", "prev", "tape", "zeros", "learned"})
"""Words of the language: `as` cannot give them."""


PREV = "prev."
HIDDEN = " "
"""What a name has in it that blocks give for one another, and no recipe can give or read."""


class Scope:
    """What can be read at one point of one encoder or decoder.

    `visible` is what can be read here, `given` what is taken, `declared` every name that the
    encoder or decoder gives somewhere, and `reserved` what cannot be given. `reads` is what has
    been read, in order, branches included. Inside a `recurrent`, `entered` is what was taken
    outside of it, and `guess` stands for a `prev` that is not known yet. `refused` are the names
    that blocks which were refused would have given, those in encoders before this one included.
    """

    def __init__(
        self,
        visible: Mapping[str, Named],
        taken: Iterable[str],
        declared: frozenset[str],
        reserved: frozenset[str],
        reads: list[str],
        entered: frozenset[str] | None = None,
        guess: Named | None = None,
        *,
        refused: set[str],
    ) -> None:
        self.visible, self.refused = dict(visible), refused
        self.taken = set(taken)
        self.declared, self.reserved, self.reads = declared, reserved, reads
        self.entered, self.guess = entered, guess

    @classmethod
    def root(
        cls,
        stream: Stream,
        declared: Iterable[str] = (),
        reserved: Iterable[str] = (),
        refused: Iterable[str] = (),
    ) -> Scope:
        """Return the names at the top of an encoder or decoder: `input`, the embedded tokens."""
        taken = RESERVED | frozenset(reserved)
        return cls(
            {"input": Named(stream)}, (), frozenset(declared), taken, [], refused=set(refused)
        )

    def define(self, name: str, named: Named) -> None:
        """Let every later block read `named` as `name`. Raises BlockError if the name is taken."""
        if name in self.reserved:
            message = f"`{name}` is a reserved word"
            raise BlockError("as", message, code="name", fix="choose another name")
        if name in self.taken:
            raise BlockError(
                "as",
                f"the name `{name}` is given twice",
                code="name",
                fix="give each output a name of its own",
            )
        self.taken.add(name)
        self.visible[name] = named

    def read(self, name: str, setting: str, readable: Iterable[str] | None = None) -> Named:
        """Return the output or memory called `name`.

        Raises BlockError with the closest of the names that are `readable` there.
        """
        self.reads.append(name)
        if name in self.visible:
            return self.visible[name]
        if name.removeprefix(PREV) in self.refused:
            raise follow_up(name, setting)
        if not name.startswith(PREV):
            raise self.unknown_output(
                name, setting, list(self.visible if readable is None else readable)
            )
        if self.guess is None:
            raise self.no_previous(name, setting)
        return self.guess

    def unknown_output(self, name: str, setting: str, readable: Sequence[str]) -> BlockError:
        """Return the error for a name that no output has which can be read here."""
        if name in self.declared:
            message = f"`{name}` cannot be read here: it is named later, or in another branch"
            previous = (
                f"write `{PREV}{name}` for its value one position before, or read it after the"
                " block"
            )
            fix = Fix(previous, Rename((setting,), name, f"{PREV}{name}"))
            fix = (
                Fix("read it after the block, or after the merge") if self.entered is None else fix
            )
            return BlockError(setting, message, code="name", fix=fix)
        meant = close_match(name, readable)
        add = f"name an earlier block `as: {name}`"
        listing = f"{f'write `{meant}`' if meant else add}; what can be read here: "
        return self.unknown_name(name, setting, readable, "nothing here", add, listing)

    def unknown_name(
        self,
        name: str,
        setting: str,
        readable: Iterable[str],
        what: str,
        add: str,
        listing: str = "write one of ",
    ) -> BlockError:
        """Return the error for a name that none of `readable` has, which it lists; without any it
        says what to `add`.

        `what` is `no memory`, `no stack`.
        """
        if name in self.refused:
            return follow_up(name, setting)
        readable = [name for name in readable if HIDDEN not in name]
        meant = close_match(name, readable)
        listed = ", ".join(f"`{other}`" for other in readable)
        message = f"{what} is called `{name}`" + (f"; did you mean `{meant}`?" if meant else "")
        change = Rename((setting,), name, meant) if meant else None
        return BlockError(
            setting, message, code="name", fix=Fix(f"{listing}{listed}" if listed else add, change)
        )

    def no_previous(self, name: str, setting: str) -> BlockError:
        """Return the error for a `prev` that does not exist."""
        of = name.removeprefix(PREV)
        if self.entered is None:
            return BlockError(
                setting,
                f"`{name}` is `{of}` one step before, and only a `recurrent` has steps",
                code="name",
                fix=f"put the block, and the one that makes `{of}`, into `- recurrent: [...]`",
            )
        if of in self.visible or of in self.declared:
            fix = f"move the block that makes `{of}` into this `recurrent`"
            fix = f"read `{of}`, or {fix}" if of in self.visible else fix
            return BlockError(
                setting,
                f"`{of}` is not made in this `recurrent`, so it has no step before",
                code="name",
                fix=fix,
            )
        made = [name.removeprefix(PREV) for name in self.visible if name.startswith(PREV)]
        close = close_match(of, made)
        meant = f"; did you mean `{PREV}{close}`?" if close else ""
        listed = ", ".join(f"`{PREV}{name}`" for name in made)
        fix = f"what was one step before: {listed}" if listed else f"name a block in it `as: {of}`"
        return BlockError(
            setting, f"nothing in this `recurrent` is called `{of}`{meant}", code="name", fix=fix
        )

    def branch(self) -> Scope:
        """Return the names as a branch sees them: what is defined there is not seen by its
        siblings.
        """
        forked = self.copy()
        forked.taken = self.taken
        return forked

    def copy(self) -> Scope:
        """Return the names as the next iteration of a repeat sees them: it defines the same names
        once more.
        """
        names = (
            self.visible,
            self.taken,
            self.declared,
            self.reserved,
            self.reads,
            self.entered,
            self.guess,
        )
        return Scope(*names, refused=self.refused)

    def iteration(self, before: Scope) -> Scope:
        """Return the names as an iteration of a repeat sees them, after `before`: what is hidden
        can be read on.
        """
        names = self.copy()
        hidden = {name: named for name, named in before.visible.items() if HIDDEN in name}
        names.visible |= hidden
        names.taken |= hidden.keys()
        return names

    def merge(self, branches: Iterable[Scope]) -> None:
        """Make what the branches define readable after their merge."""
        for branch in branches:
            self.visible.update(branch.visible)
            self.taken.update(branch.taken)

    def enter_loop(
        self, stream: Stream, previous: Mapping[str, Named], guess: Named | None = None
    ) -> Scope:
        """Return the names in a `recurrent`: `input` is the stream that enters, `prev.x` what
        `previous` has as x.
        """
        outer = {name: named for name, named in self.visible.items() if not name.startswith(PREV)}
        before = {f"{PREV}{name}": named for name, named in previous.items()}
        visible = {**outer, "input": Named(stream), **before}
        taken, outside = self.taken, frozenset(self.taken)
        return Scope(
            visible, taken, self.declared, self.reserved, [], outside, guess, refused=self.refused
        )

    def defined_in_loop(self) -> dict[str, Named]:
        """Return the outputs that the surrounding `recurrent` has defined and built so far."""
        names = self.taken - (self.entered or frozenset())
        return {name: self.visible[name] for name in sorted(names) if name in self.visible}

    def exit_loop(self, inner: Scope) -> None:
        """Make outputs of a `recurrent` readable after it; its reads count as reads here."""
        self.visible.update(inner.defined_in_loop())
        self.taken.update(inner.taken)
        for name in inner.reads:
            if name != "input" and not name.startswith(PREV):
                self.reads.append(name)


def follow_up(name: str, setting: str) -> BlockError:
    """Return the error for a name that a block which was refused would have given."""
    return BlockError(setting, f"the block that makes `{name}` is refused", code=FOLLOWS)


def close_match(name: str, readable: Iterable[str]) -> str:
    """Return the name that was probably meant, or ""."""
    return next(iter(difflib.get_close_matches(name, list(readable), n=1, cutoff=0.5)), "")
