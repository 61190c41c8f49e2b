"""A command dies with its try; its streams are read to their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowengine.errors import GiveUp
from flowengine.library.processes import STDERR_BYTES, STDOUT_BYTES, Command, execute

_MEGABYTE = 1_000_000
#: Writes its own id and that of a background process, which has left the group, and sleeps.
_LONG = 'trap "" TERM; setsid sleep 300 & echo $$ $! > "$PIDS"; while true; do sleep 1; done'


def sh(script: str, **options: object) -> Command:
    return Command(["sh", "-c", script], **options)  # type: ignore[arg-type]


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def pids_in(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def test_both_streams_are_read_at_once() -> None:
    script = f"head -c {_MEGABYTE} /dev/zero | tr '\\0' o; head -c {_MEGABYTE} /dev/zero >&2"
    ended = execute(sh(f"({script}) & ({script}); wait"))
    assert (ended.exit_code, ended.signal) == (0, "")
    assert ended.stdout == b"o" * STDOUT_BYTES
    assert len(ended.stderr) == STDERR_BYTES


def test_a_command_reads_its_standard_input() -> None:
    assert execute(Command(["wc", "-c"], stdin=b"x" * 3 * _MEGABYTE)).stdout.split() == [b"3000000"]
    assert execute(Command(["true"], stdin=b"x" * 3 * _MEGABYTE)).exit_code == 0


def test_a_signal_to_all_processes_of_a_service_does_not_end_the_keepers() -> None:
    assert execute(sh("kill -TERM $PPID; kill -INT $PPID; exit 3")).exit_code == 3


def test_the_exit_code_or_signal_of_a_command_is_reported() -> None:
    assert execute(sh("exit 3")).exit_code == 3
    assert execute(sh("kill -USR1 $$")).signal == "SIGUSR1"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Command(["/no/such/program"]), "No such file or directory"),
        (Command(["/"]), "Permission denied"),
        (Command(["true"], directory="/no/such/directory"), "/no/such/directory"),
        (Command(["true\0"]), "null"),
    ],
)
def test_a_command_that_cannot_be_started_is_not_tried_again(command: Command, reason: str) -> None:
    with pytest.raises(GiveUp, match=reason):
        execute(command)


def test_a_cancelled_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = sh(_LONG, environment={"PIDS": str(pids)})
    ended = execute(command, is_cancelled=lambda: len(pids_in(pids)) == 2, grace=0.2)
    assert ended.signal == "SIGKILL"
    assert [lives(pid) for pid in pids_in(pids)] == [False, False]


def test_processes_that_a_command_leaves_behind_end_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = '(setsid sh -c "sleep 300 & sleep 300") & echo $! > "$PIDS"; setsid sleep 300 &'
    execute(sh(f'{script} echo $! >> "$PIDS"', environment={"PIDS": str(pids)}))
    assert [lives(pid) for pid in pids_in(pids)] == [False, False]
