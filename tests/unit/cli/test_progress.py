"""The live view of a run in a terminal that is lower than its tree."""

from __future__ import annotations

import io

from rich.console import Console, Group

from flowengine.cli.progress import _Bottom
from flowengine.cli.terminal import line


def test_the_end_of_a_high_tree_is_visible() -> None:
    console = Console(file=io.StringIO(), width=40, height=12, color_system=None)
    tree = Group(*(line(f"step {number}") for number in range(50)))
    console.print(_Bottom(tree))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().split("\n")
    assert shown[:2] == ["step 0", "… 40 lines above"]
    assert shown[2:-1] == [f"step {number}" for number in range(41, 50)]
    assert len(shown[:-1]) <= 12


def test_a_tree_that_fits_is_shown_whole() -> None:
    console = Console(file=io.StringIO(), width=40, height=12, color_system=None)
    console.print(_Bottom(Group(line("one"), line("two"))))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "one\ntwo\n"
