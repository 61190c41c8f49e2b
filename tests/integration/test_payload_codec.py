"""A payload codec: everything that is stored of values is encoded, and nothing else changes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from flowengine import Cache, event_facet, foreach, wait_for, workflow
from flowengine.errors import InvalidSetting, PayloadUnreadable
from flowengine.payload_codecs import AesGcmCodec, codec_of
from flowengine.settings import Settings
from flowengine.store import codec
from flowengine.store.tables import metadata
from flowengine.testing import Flow, replay
from flowengine.worker.spool import Spool

pytest.importorskip("cryptography", reason="the extra `secrets` is not installed")

OLD, NEW = "old=" + "11" * 32, "new=" + "22" * 32
AES = "flowengine.payload_codecs:AesGcmCodec"
WORD = "zebra-crossing"


@event_facet(name="codec.echo")
def echo(text: str) -> str:
    if text.startswith("fail"):
        raise ValueError(f"refused {text}")
    return text


@event_facet(name="codec.kept", cache=Cache("kept:{n}", 60))
def kept(n: int) -> str:
    return WORD * n


@workflow(name="codec.cached")
def cached(n: int) -> str:
    return echo(kept(n))


@workflow(name="codec.flow")
def flow_(text: str) -> list[str]:
    asked = wait_for("word", str)
    return foreach([echo(text), echo(asked)], lambda one: echo(one))


@workflow(name="codec.fails")
def fails(text: str) -> str:
    return echo(text)


@pytest.fixture(autouse=True)
def no_codec_behind() -> Iterator[None]:
    yield
    codec.use_payload_codec(None)


def settings(keys: str = OLD, name: str = AES) -> Settings:
    return Settings(payload_codec=name, payload_keys=keys)


def stored_text(flow: Flow) -> str:
    """All rows of all tables, as text."""
    with flow.database.read() as session:
        rows = {
            name: [list(row) for row in session.connection.execute(select(table))]
            for name, table in metadata.tables.items()
        }
    return json.dumps(rows)


def run_all(flow: Flow) -> None:
    """A run with small and large values, an answer, and one that fails."""
    run = flow.start(flow_, WORD * 2_000)
    flow.settle()
    run.send("word", WORD)
    flow.settle()
    assert run.result(timeout=0) == [WORD * 2_000, WORD]
    for n in (1, 1, 2_000, 2_000):
        assert flow.run(cached, n) == WORD * n
    failed = flow.start(fails, f"fail {WORD}")
    flow.settle()
    assert failed.info().error_text == f"fails.echo: ValueError: refused fail {WORD}"
    replay(flow.engine.export(run.id)).check()


@pytest.mark.parametrize("name", [AES, "flowengine.payload_codecs:ZlibCodec"])
def test_no_value_is_stored_as_it_is(database_url: str, name: str) -> None:
    with Flow(store_url=database_url, settings=settings(name=name)) as flow:
        run_all(flow)
        assert WORD not in stored_text(flow)


def test_without_a_codec_values_are_readable(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        run_all(flow)
        assert WORD in stored_text(flow)


def test_keys_are_rotated_and_runs_that_began_before_the_codec_go_on(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        plain = flow.start(fails, "plain").id
    with Flow(store_url=database_url, settings=settings(OLD)) as flow:
        old = flow.start(fails, "old").id
        assert flow.engine.get(plain).state == "RUNNING"
    with Flow(store_url=database_url, settings=settings(f"{NEW},{OLD}")) as flow:
        new = flow.start(fails, "new").id
        flow.settle()
        results = [flow.engine.run(run_id).result(timeout=0) for run_id in (plain, old, new)]
        assert results == ["plain", "old", "new"]
    with Flow(store_url=database_url, settings=settings(NEW)) as flow:
        assert flow.engine.run(new).result(timeout=0) == "new"
        with pytest.raises(PayloadUnreadable) as caught:
            flow.engine.export(old)
        assert str(caught.value) == (
            "a stored value cannot be read: it was encrypted with the key 'old', which this "
            "process does not have: add it to FLOWENGINE_PAYLOAD_KEYS behind the current key, "
            "until no stored run needs it"
        )
    with Flow(store_url=database_url) as flow, pytest.raises(PayloadUnreadable) as caught:
        flow.engine.run(new).result(timeout=0)
    assert "this process has none: set FLOWENGINE_PAYLOAD_CODEC" in str(caught.value)


def test_a_changed_value_and_a_wrong_key_are_refused() -> None:
    sealed = AesGcmCodec({"a": b"1" * 32}).encode(b"text")
    with pytest.raises(PayloadUnreadable, match="or the value was changed"):
        AesGcmCodec({"a": b"1" * 32}).decode(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    with pytest.raises(PayloadUnreadable, match="another than the one that encrypted it"):
        AesGcmCodec({"a": b"2" * 32}).decode(sealed)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("nowhere:Codec", "", "a class with encode and decode, as module:Class"),
        ("json:JSONEncoder", "", "a class with encode and decode, as module:Class"),
        ("zlib", "", "a class with encode and decode, as module:Class"),
        (AES, "", "at least one key"),
        (AES, "a=12", "keys as id=64 hexadecimal digits"),
        (AES, f"{OLD},{OLD}", "each id once"),
    ],
)
def test_a_wrong_codec_or_key_is_refused(name: str, keys: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        codec_of(settings(keys, name))
    assert message in str(caught.value)
    assert "1111" not in str(caught.value)


class Reversed:
    """A codec of the user: without settings."""

    def encode(self, plain: bytes) -> bytes:
        return zlib.compress(plain)[::-1]

    def decode(self, stored: bytes) -> bytes:
        return zlib.decompress(stored[::-1])


def test_a_codec_of_ones_own_needs_two_methods(database_url: str) -> None:
    with Flow(store_url=database_url, settings=settings(name=f"{__name__}:Reversed")) as flow:
        run_all(flow)
        assert WORD not in stored_text(flow)


def test_the_spool_is_encoded(tmp_path: Path) -> None:
    codec.use_payload_codec(codec_of(settings()))
    record: dict[str, Any] = {"task_id": "a", "lease": 1, "result": WORD}
    path = Spool(tmp_path).write(record)
    assert WORD not in path.read_text()
    assert json.loads(codec.opened(path.read_text())) == record
