"""Lines outlive their process in files, and become the same chunks for whoever reads those."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from flowengine.step_logs import segments, spool, try_log
from flowengine.step_logs.chunks import LogChunk, TryKey
from flowengine.step_logs.lines import lines_of
from flowengine.step_logs.redaction import Redactor
from flowengine.step_logs.segments import chunks_of, locked
from flowengine.step_logs.spool import LogSpool
from flowengine.step_logs.tail_files import left_tails
from flowengine.step_logs.try_log import TryLog

LONG = "x" * 1_000


def key_of(task: str) -> TryKey:
    return TryKey("r" * 32, task * 32, 1)


def opened(
    directory: Path | None, task: str = "a", *, most: int = 1 << 30, head: int = 1 << 30
) -> tuple[LogSpool, TryLog]:
    lines = LogSpool(directory, max_bytes=most)
    return lines, TryLog(lines, key_of(task), Redactor(), head)


def texts(chunks: Sequence[LogChunk]) -> list[tuple[int, str]]:
    return [(line.number, line.text) for c in chunks for line in lines_of(c.body, c.first)]


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*"))


def kept_aside(path: Path, problem: Exception) -> None:
    raise problem


class Cipher:
    """A payload codec that refuses what it has not made whole."""

    def seal(self, text: str) -> str:
        return f"!{text[::-1]}!"

    def unseal(self, text: str) -> str:
        if text[0] != "!" or text[-1] != "!":
            raise ValueError("cut off")
        return text[1:-1][::-1]


def write_cut_off(monkeypatch: pytest.MonkeyPatch, log: TryLog, line: str) -> None:
    """Write a line to a disk that has room for its first bytes."""
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(segments.os, "write", lambda file, content: write(file, content[:20]))
        log.write("stdout", line)


def test_a_log_without_lines_has_no_file(tmp_path: Path) -> None:
    lines, log = opened(tmp_path / "logs")
    log.end()
    assert log.take() == []
    lines.close()
    assert not (tmp_path / "logs").exists()


def test_a_reader_of_the_file_finds_the_chunks_that_the_process_has_made(tmp_path: Path) -> None:
    lines, log = opened(tmp_path)
    other = TryLog(lines, key_of("b"), Redactor(), 1 << 30)
    made = []
    for number in range(3_000):
        log.write("stdout", f"line {number} {'x' * 100}\n")
        other.record(30, "shop", f"other {number}")
        if number % 700 == 0:  # a delivery takes what there is
            made += lines.stored_form(taken := lines.take())
            lines.give_back(taken)
    made = lines.stored_form(lines.take(1 << 30))
    (path,) = files(tmp_path)
    assert sorted(chunks_of(path, str)) == made
    for task in "ab":
        of_try = [chunk for chunk in made if chunk.task_id[0] == task]
        assert [number for number, _ in texts(of_try)] == list(range(1, 3_001))
    lines.close()


def test_a_living_process_keeps_its_file_and_a_dead_one_leaves_it(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        _, log = opened(tmp_path)
        log.write("stdout", "the last line\npart")
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    lines, log = opened(tmp_path, "b")
    log.write("stdout", "mine\n")
    found = []
    for path in files(tmp_path):
        with locked(path) as is_ours:
            if is_ours:
                found += list(chunks_of(path, str))
    assert texts(found) == [(1, "the last line")]
    lines.close()


def test_stored_lines_leave_no_file_behind(tmp_path: Path) -> None:
    lines, log = opened(tmp_path)
    log.write("stderr", "x\n" * 1_000)
    lines.delivered(lines.take(1 << 30))
    lines.idle()
    assert [path.stat().st_size for path in files(tmp_path)] == [0]
    lines.close()
    assert files(tmp_path) == []


def test_a_full_file_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 10_000)
    lines, log = opened(tmp_path)
    for number in range(500):
        log.write("stdout", f"{number}\n")
    assert len(files(tmp_path)) > 3
    stored = lines.stored_form(taken := lines.take(1 << 30))
    assert [number for number, _ in texts(stored)] == list(range(1, 501))
    lines.delivered(taken)
    assert len(files(tmp_path)) == 1
    lines.close()


def test_lines_beyond_the_memory_are_read_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 100_000)
    lines, log = opened(tmp_path)
    for number in range(5_000):
        log.write("stdout", f"{number} {'x' * 100}\n")
    chunks = lines.take(1 << 30)
    assert any(chunk.lines is None for chunk in chunks)
    found = texts(lines.stored_form(chunks))
    assert [number for number, _ in found] == list(range(1, 5_001))
    assert found[4_321][1].startswith("4321 ")
    lines.close()


def test_the_loss_of_lines_beyond_the_limit_is_recorded_as_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 10_000)
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 10_000)
    lines, log = opened(tmp_path, most=20_000)
    for number in range(1, 2_001):
        log.write("stdout", f"{number}\n")
    lines.delivered(taken := lines.take(1 << 30))
    before = texts(lines.stored_form([c for c in taken if c.lines is not None]))
    log.write("stdout", "later\n")
    log.end()
    told, later = texts(lines.stored_form(lines.take()))
    assert later == (2_001, "later")
    assert told[0] == 2_000
    lost = int(told[1].split()[1].replace(",", ""))
    assert "are lost" in told[1]
    assert before == [] or before[-1][0] + lost == 2_000
    lines.close()


def test_a_full_disk_does_not_fail_and_keeps_lines_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, log = opened(tmp_path)
    log.write("stdout", "before\n")

    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(segments.os, "write", full)
    log.write("stdout", "while it is full\n")
    monkeypatch.undo()
    log.write("stdout", "after\n")
    assert [text for _, text in texts(lines.stored_form(lines.take()))] == [
        "before",
        "while it is full",
        "after",
    ]
    lines.close()


def test_a_line_that_was_cut_off_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, log = opened(tmp_path)
    log.write("stdout", "first\n")
    write_cut_off(monkeypatch, log, "cut off\n")
    log.write("stdout", "third\nfourth\n")
    (path,) = files(tmp_path)
    found = texts(list(chunks_of(path, str)))
    assert found == [(1, "first"), (3, "third"), (4, "fourth")]
    found = texts(lines.stored_form(lines.take()))
    assert found == [(1, "first"), (2, "cut off"), (3, "third"), (4, "fourth")]
    lines.close()


def test_lines_on_a_full_disk_share_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, log = opened(tmp_path)
    write_cut_off(monkeypatch, log, "cut off\n" * 100)
    assert [chunk.content.count for chunk in lines.take()] == [100]
    lines.close()


def test_a_line_that_was_cut_off_spoils_no_other_with_a_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 10_000)
    cipher, problems = Cipher(), list[Exception]()
    lines = LogSpool(tmp_path, max_bytes=1 << 30, seal=cipher.seal, unseal=cipher.unseal)
    log = TryLog(lines, key_of("a"), Redactor(), 1 << 30)
    log.write("stdout", "first\n")
    write_cut_off(monkeypatch, log, "cut off\n")
    for number in range(3, 2_001):
        log.write("stdout", f"{number} {'x' * 100}\n")
    taken = lines.take(1 << 30)
    assert any(chunk.lines is None for chunk in taken)
    assert [number for number, _ in texts(lines.stored_form(taken))] == list(range(1, 2_001))
    lines.give_back(taken)
    lines.close()
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])  # a kill
    found = texts(list(chunks_of(path, cipher.unseal, unreadable=problems)))
    assert [number for number, _ in found] == [1, *range(3, 2_000)]
    assert problems == []


def test_an_unreadable_line_is_reported_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 0)
    cipher, problems = Cipher(), list[Exception]()
    lines = LogSpool(tmp_path, max_bytes=1 << 30, seal=cipher.seal, unseal=cipher.unseal)
    log = TryLog(lines, key_of("a"), Redactor(), 1 << 30)
    log.write("stdout", f"{LONG}\n" * 200)
    (path,) = files(tmp_path)
    content = path.read_bytes().splitlines(keepends=True)
    content[10] = b"?" + content[10][1:]
    path.write_bytes(b"".join(content))
    found = texts(list(chunks_of(path, cipher.unseal, unreadable=problems)))
    assert [number for number, _ in found] == [*range(1, 11), *range(12, 201)]
    assert len(problems) == 1
    found = texts(lines.stored_form(lines.take(1 << 30)))
    assert [number for number, _ in found] == list(range(1, 201))
    assert [number for number, text in found if "1 lines are lost" in text] == [11]
    lines.close()


def test_an_unreadable_tail_keeps_no_other_from_being_stored(tmp_path: Path) -> None:
    cipher, aside = Cipher(), list[Path]()
    for task in "ab":
        lines = LogSpool(tmp_path, max_bytes=1 << 30, seal=cipher.seal, unseal=cipher.unseal)
        log = TryLog(lines, key_of(task), Redactor(), 10)
        log.write("stdout", "1\n2\n3\n")
        lines.close()
    bad = min(tmp_path.glob("*.tail"))
    bad.write_bytes(bad.read_bytes().replace(b"!", b"?"))
    with left_tails(tmp_path, "", cipher.unseal, lambda path, _: aside.append(path)) as tails:
        assert [text for _, text in texts(tails)] == ["1", "2", "3"]
    assert aside == [bad]


def test_no_step_writes_the_warning_about_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler may hold a lock for which another step waits that holds those of the spool."""
    lines, log = opened(tmp_path)
    write_cut_off(monkeypatch, log, "cut off\nagain\n")
    assert caplog.records == []
    lines.tell_problem()
    lines.tell_problem()
    assert len(caplog.records) == 1
    lines.close()


def test_the_gap_of_a_long_log_is_recorded_as_a_line(tmp_path: Path) -> None:
    lines, log = opened(tmp_path, head=10_000)
    for number in range(1, 3_001):
        log.write("stdout", f"{number} {LONG}\n")
    log.end()
    found = texts(lines.stored_form(log.take()))
    numbers = [number for number, _ in found]
    (at,) = [place for place, (_, text) in enumerate(found) if "left out" in text]
    assert numbers[:at] == list(range(1, at + 1))
    assert numbers[at:] == list(range(numbers[at], 3_001))
    assert f"{numbers[at] - at:,} lines" in found[at][1]
    lines.close()


def test_the_line_about_a_gap_has_the_time_of_the_line_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1_000_000_000, 10**12, 1_000_000))
    monkeypatch.setattr(try_log, "time_ns", lambda: next(clock))
    lines, log = opened(tmp_path, head=3_000)
    for number in range(3_000):
        log.write("stdout", f"{number}{LONG}\n")
    log.end()
    stored = lines.stored_form(log.take())
    found = [line for c in stored for line in lines_of(c.body, c.first)]
    times = [line.at for line in found]
    assert any("left out" in line.text for line in found)
    assert times == sorted(times), "a reader that sorts by time keeps it in its place"
    lines.close()


def test_the_tail_of_a_long_log_outlives_its_process_and_stays_small(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        _, log = opened(tmp_path, head=10_000)
        for number in range(1, 5_001):
            log.write("stdout", f"{number} {LONG}\n")
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert sum(path.stat().st_size for path in files(tmp_path)) < 3_500_000
    (head,) = tmp_path.glob("*.lines")
    found = texts(list(chunks_of(head, str)))
    with left_tails(tmp_path, "", str, kept_aside) as tail:
        found += texts(tail)
    numbers = [number for number, _ in found]
    (at,) = [place for place, (_, text) in enumerate(found) if "left out" in text]
    assert numbers[:at] == list(range(1, at + 1))
    assert numbers[at:] == list(range(numbers[at], 5_001))
    assert f"{numbers[at] - at:,} lines" in found[at][1]
    assert list(tmp_path.glob("*.tail")) == []


def test_the_files_of_a_tail_are_gone_when_it_is_stored(tmp_path: Path) -> None:
    lines, log = opened(tmp_path, head=10_000)
    log.write("stdout", "x" * 100 + "\n" + "y\n" * 3_000)
    assert len(list(tmp_path.glob("*.tail"))) == 1
    log.end()
    chunks = log.take()
    assert len(list(tmp_path.glob("*.tail"))) == 1
    lines.delivered(chunks)
    assert list(tmp_path.glob("*.tail")) == []
    lines.close()


def test_a_kill_while_the_tail_is_stored_leaves_each_of_its_lines_once(tmp_path: Path) -> None:
    for task, stored in (("a", 0), ("b", 2), ("c", 100)):
        rows: dict[int, LogChunk] = {}
        lines, log = opened(tmp_path, task, head=10_000)
        for number in range(1, 2_001):
            log.write("stdout", f"{number} {LONG}\n")
        log.end()
        for form in lines.stored_form(log.take()[:stored]):
            rows.setdefault(form.first, form)
        lines.close()  # as the kernel does it
        for path in tmp_path.glob("*.lines"):
            for form in chunks_of(path, str):
                rows.setdefault(form.first, form)
            path.unlink()
        with left_tails(tmp_path, "", str, kept_aside) as tail:
            for form in tail:
                rows.setdefault(form.first, form)
        found = texts([rows[first] for first in sorted(rows)])
        numbers = [number for number, _ in found]
        (at,) = [place for place, (_, text) in enumerate(found) if "left out" in text]
        assert numbers == [*range(1, at + 1), *range(numbers[at], 2_001)], task


def test_tails_beyond_the_memory_are_left_in_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 100_000)
    lines, log = opened(tmp_path, head=1_000)
    log.write("stdout", f"{LONG}\n" * 200)
    log.end()
    assert log.take() == []
    with left_tails(tmp_path, "", str, kept_aside) as tail:
        assert [number for number, _ in texts(tail)] == list(range(1, 201))
    lines.close()


def test_without_files_a_try_has_all_that_its_cap_allows() -> None:
    lines, log = opened(None, head=10 << 20)
    for _ in range(1_200):
        log.write("stdout", f"{LONG}\n" * 10)
    log.end()
    kept = texts(lines.stored_form(taken := log.take()))
    lines.delivered(taken)
    assert kept[-1][0] == 12_000
    assert sum(len(text) for _, text in kept) > 10_500_000
    assert not any("lost" in text for _, text in kept)
    log.write("stdout", "of a thread that goes on\n" * 10)
    assert not lines.has_pending


def test_late_lines_are_stored_while_there_is_room(tmp_path: Path) -> None:
    lines, log = opened(tmp_path, head=2_000)
    log.write("stdout", "in time\n")
    log.end()
    lines.delivered(log.take())
    for part in ("late", " ", "line", "\n"):
        log.write("stdout", part)
    found = texts(lines.stored_form(taken := lines.take()))
    assert found == [(2, "late line")]
    lines.delivered(taken)
    log.write("stdout", f"{LONG}\n" * 100)
    lines.delivered(lines.take())
    assert list(tmp_path.glob("*.tail")) == []
    lines.close()
    assert files(tmp_path) == []


def test_a_late_line_without_a_newline_is_stored_when_nothing_follows(tmp_path: Path) -> None:
    lines, log = opened(tmp_path)
    log.end()
    began = time.monotonic()
    for text in ("one line", " in parts\nand", " another"):
        log.write("stdout", text)
    assert lines.has_waiting  # the delivery looks again
    assert lines.take(before=began) == []  # `print` writes a line in parts
    found = texts(lines.stored_form(taken := lines.take()))
    assert found == [(1, "one line in parts"), (2, "and another")]
    lines.delivered(taken)
    assert not lines.has_pending
    log.write("stderr", "the last words")
    found = texts(lines.stored_form(lines.take()))
    assert found == [(3, "the last words")]
    lines.close()


def test_lines_of_threads_are_stored_once_and_in_order_by_whoever_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread delivers, and sometimes fails; the end of each try takes what is left."""
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 50_000)
    lines = LogSpool(tmp_path, max_bytes=1 << 30)
    stored: dict[tuple[str, int], LogChunk] = {}
    order: list[tuple[str, int]] = []
    draw, is_over = Random(1), threading.Event()

    def store(chunks: Sequence[LogChunk]) -> None:
        for chunk in chunks:
            key = chunk.task_id, chunk.first
            assert stored.setdefault(key, chunk) == chunk, "the lines of a key never change"
            order.append(key)

    def deliver() -> None:
        while not is_over.is_set() or lines.has_pending:
            if taken := lines.take(draw.choice((1_000, 100_000))):
                fails = draw.random() < 0.3
                if draw.random() < 0.5:  # a failure may come before or after the statement
                    store(lines.stored_form(taken) if not fails else [])
                    (lines.give_back if fails else lines.delivered)(taken)
                else:
                    store(lines.stored_form(taken))
                    (lines.give_back if fails else lines.delivered)(taken)

    def write(task: str) -> None:
        log = TryLog(lines, key_of(task), Redactor(), 1 << 30)
        threads = [
            threading.Thread(
                target=lambda n=n: [log.write("stdout", f"{n} {i}\n") for i in range(500)]
            )
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.end()
        chunks = log.take()
        store(lines.stored_form(chunks))
        lines.delivered(chunks)

    writers = [threading.Thread(target=write, args=(task,)) for task in "abcd"]
    delivery = threading.Thread(target=deliver)
    for thread in (*writers, delivery):
        thread.start()
    for thread in writers:
        thread.join()
    is_over.set()
    delivery.join()
    for task in "abcd":
        firsts = [first for task_id, first in order if task_id[0] == task]
        assert list(dict.fromkeys(firsts)) == sorted(set(firsts)), "in order"
        found = texts([stored[task * 32, first] for first in sorted(set(firsts))])
        assert [number for number, _ in found] == list(range(1, 1_001))
        for n in range(2):
            of_thread = [text for _, text in found if text.startswith(f"{n} ")]
            assert of_thread == [f"{n} {i}" for i in range(500)]
    lines.close()
    assert files(tmp_path) == []


def test_a_forked_child_does_not_write_to_the_log_of_its_parent(tmp_path: Path) -> None:
    lines, log = opened(tmp_path)
    log.write("stdout", "of the parent\n")
    child = os.fork()
    if child == 0:
        log.write("stdout", "of the child\n")
        os._exit(0)
    os.waitpid(child, 0)
    assert texts(lines.stored_form(lines.take())) == [(1, "of the parent")]
    (path,) = files(tmp_path)
    with locked(path) as is_ours:
        assert not is_ours
    lines.close()


def test_each_chunk_that_waits_wakes_the_delivery(tmp_path: Path) -> None:
    """Also while a report stores the chunks of another try."""
    woken: list[int] = []
    lines = LogSpool(tmp_path, max_bytes=1 << 30, wake=lambda: woken.append(1))
    one = TryLog(lines, key_of("a"), Redactor(), 1 << 30)
    other = TryLog(lines, key_of("b"), Redactor(), 1 << 30)
    one.write("stdout", "x\n")
    taken = one.take()
    woken.clear()
    other.write("stdout", "the first line of a long try\n")
    lines.delivered(taken)
    assert woken
    lines.close()


def test_a_line_that_the_codec_refuses_is_kept_in_memory(tmp_path: Path) -> None:
    def refuse(text: str) -> str:
        raise ValueError("no key")

    lines = LogSpool(tmp_path, max_bytes=1 << 30, seal=refuse)
    log = TryLog(lines, key_of("a"), Redactor(), 50)
    log.write("stdout", "first\nsecond\nwithout a newline")
    log.end()
    kept = texts(lines.stored_form(log.take()))
    assert kept == [(1, "first"), (2, "second"), (3, "without a newline")]
    lines.close()


def test_one_text_much_longer_than_all_that_is_kept_is_recorded_as_a_gap(tmp_path: Path) -> None:
    lines, log = opened(tmp_path, head=100_000)
    log.write("stdout", f"first\n{'x' * (8 << 20)}end\nlast\n")
    log.end()
    found = texts(lines.stored_form(log.take()))
    (at,) = [place for place, (_, text) in enumerate(found) if "left out" in text]
    numbers = [number for number, _ in found]
    assert numbers == [*range(1, at + 1), *range(numbers[at], numbers[-1] + 1)]
    assert f"{numbers[at] - at:,} lines" in found[at][1]
    assert [text[-3:] for _, text in found[-2:]] == ["end", "ast"]
    assert sum(len(text) for _, text in found) > 1_000_000
    lines.close()


def test_a_secret_in_two_writes_of_a_long_line_is_masked(tmp_path: Path) -> None:
    lines = LogSpool(tmp_path, max_bytes=1 << 30)
    log = TryLog(lines, key_of("a"), Redactor(["hunter2-secret"]), 1 << 30)
    for start in range(32_700, 33_400, 97):
        log.write("stdout", "x" * start + "hunter2")
        log.write("stdout", "-secret and amqp://u:pass")
        log.write("stdout", "word@host\n")
    log.end()
    kept = "".join(text for _, text in texts(lines.stored_form(log.take())))
    assert "hunter2" not in kept
    assert "password" not in kept
    assert kept.count("@host") == 8
    lines.close()


def test_the_delivery_leaves_young_chunks_to_the_reports_of_their_tries(tmp_path: Path) -> None:
    lines, log = opened(tmp_path)
    log.write("stdout", "x\n")
    assert lines.take(before=time.monotonic() - 60) == []
    assert lines.has_waiting
    assert len(lines.take(before=time.monotonic())) == 1
    assert not lines.has_waiting
    lines.close()
