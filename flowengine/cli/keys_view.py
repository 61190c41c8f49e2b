"""`flowengine keys`: the counts of keys, and the progress of their replacement."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.table import Table

from flowengine.cli.database import open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line, print_table, table_of
from flowengine.engine.payload_keys import KeyUse, PayloadKeys, Reencrypted
from flowengine.store import codec

_UNREADABLE = 10  #: rows that are named; the others are counted
_UNKNOWN = "?"  #: shown for a value that does not tell its key


def show_keys(most: int | None, *, as_json: bool) -> None:
    with open_engine() as engine:
        found = PayloadKeys(engine.database).in_use(most)
        known = codec.known_keys()
    total = Counter[str]()
    for use in found:
        total.update(use.values)
    if as_json:
        keys = [
            {"key": key, "values": total[key], "state": _state(key, known)}
            for key in _order(total, known)
        ]
        click.echo(json_of({"keys": keys, "tables": [asdict(use) for use in found]}))
        return
    print_table(_table(found, total, known))
    for key in _order(total, known):
        console.print(line(f"{key or _UNKNOWN}: ", f"{total[key]:,} values, {_state(key, known)}"))
    if cut := [use.table for use in found if not use.is_whole]:
        text = f"there are more rows in {', '.join(cut)}"
        console.print(line((f"{text}: `flowengine keys list --rows 0` counts all", "dim")))


def _order(total: Counter[str], known: Sequence[str]) -> list[str]:
    return [*known, *sorted(total.keys() - set(known))]


def _state(key: str, known: Sequence[str]) -> str:
    if key not in known:
        return "which this process does not have" if key else "which do not tell their key"
    return "encrypts" if key == known[0] else "decrypts"


def _table(found: Sequence[KeyUse], total: Counter[str], known: Sequence[str]) -> Table:
    keys = _order(total, known)
    rows = (
        [
            line(use.table),
            line(f"{use.rows:,}{'' if use.is_whole else '+'}"),
            *(line(f"{use.values.get(key, 0):,}") for key in keys),
        ]
        for use in found
        if use.rows
    )
    return table_of(("table", "rows", *(key or _UNKNOWN for key in keys)), rows)


def reencrypt(batch: int, *, dry_run: bool, as_json: bool) -> None:
    shown = sys.stderr.isatty() and not as_json

    def tell(table: str, done: Reencrypted) -> None:
        if shown:
            click.echo(f"\r{table}: {done.values:,} values so far\x1b[K", err=True, nl=False)

    with open_engine() as engine:
        done = PayloadKeys(engine.database).reencrypt(batch=batch, dry_run=dry_run, tell=tell)
        present = codec.present_key()
    if shown:
        click.echo("\r\x1b[K", err=True, nl=False)
    if as_json:
        click.echo(json_of({**asdict(done), "key": present, "dry_run": dry_run}))
    else:
        what = "would encrypt" if dry_run else "encrypted"
        text = f"{what} {done.values:,} values in {done.rows:,} rows anew by the key {present!r}"
        console.print(line(text))
        for why in done.unreadable[:_UNREADABLE]:
            console.print(line((f"not readable: {why}", "red")), soft_wrap=True)
        if (more := len(done.unreadable) - _UNREADABLE) > 0:
            console.print(line((f"… {more:,} more rows are not readable", "red")))
        if done.left:
            text = f"{done.left:,} rows were locked by others: run it again"
            console.print(line((text, "yellow")))
    if done.left or done.unreadable:
        sys.exit(1)
