"""Text becomes numbered lines, chunks and a capped log, without a database."""

from __future__ import annotations

import json
import time

from flowengine.settings import Settings
from flowengine.step_logs.cap import Cap
from flowengine.step_logs.chunks import CHUNK_BYTES, ChunkLines, TryKey
from flowengine.step_logs.lines import (
    LINE_BYTES,
    LineBuffer,
    LogLine,
    body_of,
    encoded_line,
    lines_of,
    pieces,
)
from flowengine.step_logs.redaction import HIDDEN, Redactor
from flowengine.worker.step_logs import _secrets

KEY = TryKey("r" * 32, "t" * 32, 1)


def test_a_line_is_read_as_it_was_written() -> None:
    texts = ["plain", "", 'a "quoted" \\ line', "tab\tNUL\0 ESC\x1b", "é 😀", "\ud800 alone"]
    body = body_of([encoded_line(5, 20, "stdout", "", text) for text in texts])
    assert body.isascii()
    assert lines_of(body, 7) == [
        LogLine(number, 5, 20, "stdout", "", text) for number, text in enumerate(texts, 7)
    ]


def test_writes_are_joined_to_lines() -> None:
    buffer = LineBuffer()
    assert buffer.lines("a") == []
    assert buffer.lines("b\nc\r\n\nd") == ["ab", "c", ""]
    assert buffer.rest() == ["d"]
    assert buffer.rest() == []


def test_a_stream_without_newlines_is_not_kept_in_memory() -> None:
    buffer, lines = LineBuffer(), []
    for _ in range(100):
        lines += [*buffer.lines("x" * 1_000), *buffer.overflow(str, 100)]
    lines += buffer.rest()
    assert "".join(lines) == "x" * 100_000
    assert max(map(len, lines)) < 2 * LINE_BYTES


def test_a_long_line_is_cut_and_nothing_of_it_is_lost() -> None:
    for character in ('"', "x", "\0", "é", "😀"):
        text = character * 200_000
        found = list(pieces(text))
        assert "".join(found) == text
        assert all(len(json.dumps(piece)) <= LINE_BYTES + 2 for piece in found)


def test_the_pieces_of_a_long_line_take_linear_time() -> None:
    """Sixteen times the text: 16 times the time, not 256 times; compared with a wide margin."""

    def seconds(text: str) -> float:
        began = time.process_time()
        assert sum(map(len, pieces(text))) == len(text)
        return time.process_time() - began

    for character in ("x", "é"):
        short = min(seconds(character * (1 << 19)) for _ in range(3))
        assert seconds(character * (1 << 23)) < 100 * max(short, 0.001)


def test_lines_between_the_first_and_the_last_need_not_be_made() -> None:
    cap = Cap(100, 50)
    assert not cap.leaves_out(1_000)  # there is room
    assert [cap.admits(n, "x" * 40) for n in (1, 2, 3)] == [True, True, False]
    assert cap.leaves_out(50)
    assert not cap.leaves_out(49)
    assert not cap.admits(5, "x" * 40)
    assert cap.skipped_lines == 2
    assert [number for number, _ in cap.take_tail()] == [5]


def test_all_keys_of_the_settings_are_secrets() -> None:
    settings = Settings(
        secret_keys="q83vEjRWeJA=, second-key==",
        payload_keys=f"k1={'ab' * 32}",
        tenant_tokens="shop=token-of-the-shop=",
    )
    shown = Redactor(_secrets(settings, "pass-word")).redacted(
        f"q83vEjRWeJA= second-key== {'ab' * 32} shop token-of-the-shop= pass-word"
    )
    assert shown == " ".join([HIDDEN, HIDDEN, HIDDEN, "shop", HIDDEN, HIDDEN])


def test_a_chunk_takes_neighbouring_lines_up_to_its_size() -> None:
    chunk, line = ChunkLines(KEY, 1), encoded_line(1, 20, "stdout", "", "x" * 100)
    number = 1
    while chunk.takes(number, line):
        chunk.add(line)
        number += 1
    assert not chunk.takes(number + 1, line)  # a line is missing
    stored = chunk.stored()
    assert stored.line_count == number - 1
    assert CHUNK_BYTES - 200 < len(stored.body) <= CHUNK_BYTES
    assert len(lines_of(stored.body, stored.first)) == stored.line_count


def test_of_a_long_log_the_first_and_the_last_lines_are_kept() -> None:
    cap = Cap(100, 50)
    admitted = [n for n in range(1, 101) if cap.admits(n, "x" * 10)]
    tail = [number for number, _ in cap.take_tail()]
    assert admitted == list(range(1, 11))
    assert tail == list(range(96, 101))
    assert cap.skipped_lines == 85


def test_a_log_at_its_cap_leaves_nothing_out() -> None:
    cap = Cap(100, 50)
    admitted = [n for n in range(1, 16) if cap.admits(n, "x" * 10)]
    assert [*admitted, *(number for number, _ in cap.take_tail())] == list(range(1, 16))
    assert cap.skipped_lines == 0


def test_secrets_are_masked_in_all_their_forms() -> None:
    redactor = Redactor(["hunter2!", 'with "quotes"', "-----BEGIN\nfirst line\nsecond line"])
    assert redactor.redacted("pass hunter2! twice hunter2!") == f"pass {HIDDEN} twice {HIDDEN}"
    assert "quotes" not in redactor.redacted(json.dumps({"key": 'with "quotes"'}))
    assert redactor.redacted("second line") == HIDDEN
    assert redactor.redacted("nothing") == "nothing"


def test_the_password_of_an_address_is_masked() -> None:
    shown = Redactor().redacted("open postgresql://ada:s3cr3t@db:5432/x and http://host/a:b")
    assert shown == f"open postgresql://ada:{HIDDEN}@db:5432/x and http://host/a:b"


def test_short_texts_are_no_secrets() -> None:
    """To mask a pin like 1 would mask every digit of a log."""
    assert Redactor(["1", "", "abc"]).redacted("1 abc") == "1 abc"


def test_secrets_of_one_try_are_not_masked_in_others() -> None:
    redactor = Redactor(["process-key"])
    own = redactor.with_more()
    own.add(["token-of-a-try"])
    assert own.redacted("process-key token-of-a-try") == f"{HIDDEN} {HIDDEN}"
    assert redactor.redacted("process-key token-of-a-try") == f"{HIDDEN} token-of-a-try"
