"""Addresses of a run's rows, relative to another row.

Rows of a run form a tree: a step's body is made of blocks, a block's children are the steps of
its statements; a foreach block has one child block per item, a when block one per case. A
step's catch and always bodies are blocks too.

    root step ─ block ─ step ─ block ─ …
              │              └ catch block ─ …
              ├ foreach block ─ item ─ step …
              └ when block ─ case ─ step …

A path grows the same way, so that the path of any row follows from the path of another without
loading either: a statement adds ``.name``, a block its segment (nothing when it is the only
block of its body), an item ``[i]``, a case ``[case-i]``. Step names hold no brackets and no
dots, so that no two rows of one kind share a path.

A *scope row* is the row from which an expression is read: the block's row for the arguments of
a statement and the yields of a block, the container step's row for the list of a foreach. A
source counts the parent links from there, so that reading a name never searches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class RowKind(StrEnum):
    """The kind of a row; part of the row's key, because paths may coincide."""

    STEP = "s"
    BLOCK = "b"
    FAN = "f"
    ITEM = "i"
    WHEN = "w"
    CASE = "c"
    MAILBOX = "m"  #: its path is the name of an answer


class Base(StrEnum):
    """The path that the suffix of an address is added to."""

    OWN = "own"  #: of the row itself
    BLOCK = "block"  #: of the block, item or case that the step stands in
    CONTAINER = "container"  #: of the step whose body that block is part of


@dataclass(frozen=True, slots=True)
class RowAddress:
    """A row, by its path relative to another row."""

    base: Base
    suffix: str
    kind: RowKind


@dataclass(frozen=True, slots=True)
class StepSource:
    """The place of a step that an expression names."""

    hops: int  #: parent links from the scope row
    suffix: str | None  #: added to that row's path; None: the step is that row


@dataclass(slots=True)
class Sources:
    """The place of each name that one expression or statement reads."""

    inputs: dict[str, int] = field(default_factory=dict)  #: name → hops from the scope row
    steps: dict[str, StepSource] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The rows that the end of a row reads or changes.

    The evaluator asks for all of them at once before it decides. Nothing is decided by it: a
    row that is absent here is reported as missing, and costs one more round trip.
    """

    captured: tuple[RowAddress, ...] = ()  #: rows below whose yields it takes over
    waiting: tuple[RowAddress, ...] = ()  #: rows that wait for it
    levels: int = 1  #: the nearest rows above that its end, and steps that begin then, read
    is_last: bool = True  #: nothing of its block or its own begins when it ends


NO_READS = ReadSet()
