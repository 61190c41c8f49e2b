"""The chat of the examples in a terminal, killed in the middle of an answer and started again."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowengine.store import Database
from tests.acceptance import held_chat
from tests.celery_nodes import clean_environment, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent_chat.py"


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, directory: Path) -> None:
        self._end, inside = pty.openpty()
        self.shown = ""
        command = [sys.executable, "-m", held_chat.__name__, str(EXAMPLE), "-"]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**clean_environment(), "PYTHONPATH": str(EXAMPLE.parents[1])},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        until_then = time.monotonic() + seconds
        while text not in self.shown:
            left = until_then - time.monotonic()
            assert left > 0, f"{text!r} is not shown:\n{self.shown}"
            if select.select([self._end], [], [], left)[0]:
                try:
                    self.shown += os.read(self._end, 4096).decode()
                except OSError:  # on Linux the end of the program
                    assert text in self.shown, self.shown
                    return

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.wait(timeout=10) == -signal.SIGKILL

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        os.close(self._end)


def _asked(directory: Path) -> list[str]:
    path = directory / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_a_chat_that_is_killed_in_an_answer_continues(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    go = tmp_path / "go"
    go.touch()
    first = Terminal(tmp_path)
    request.addfinalizer(first.close)
    first.type("Good morning!\n")
    first.wait_for("You said 1 things, first 'Good morning!'.")
    go.unlink()
    first.type("How are you?\n")
    until(lambda: _asked(tmp_path)[1:] == ["How are you?"], "the model call")
    first.kill()

    go.touch()
    second = Terminal(tmp_path)
    request.addfinalizer(second.close)
    second.wait_for("… You said 2 things, first 'Good morning!'.")
    second.type("Good bye.\n")
    second.wait_for("You said 3 things, first 'Good morning!'.")
    second.kill()  # the answer was given: the next one shows it again

    third = Terminal(tmp_path)
    request.addfinalizer(third.close)
    third.wait_for("… You said 3 things, first 'Good morning!'.")
    third.type("\x04")  # the end of the input
    third.wait_for("3 messages so far, in flowengine.db")
    assert third.process.wait(timeout=30) == 0
    # The model was asked again for the answer that the kill has cut off, and for no other.
    assert _asked(tmp_path) == ["Good morning!", "How are you?", "How are you?", "Good bye."]
    _check_rows(tmp_path / "flowengine.db")


def _check_rows(path: Path) -> None:
    """Each message has one turn, one answer and one deliverable, in the order of the talk."""
    database = Database(f"sqlite:///{path}")
    with database.read() as session:
        turns = session.rows(
            "SELECT agent_turn_id, task_status FROM flowengine_agent_turn ORDER BY enqueued_at"
        )
        cards = session.rows(
            "SELECT b.agent_turn_id, c.type FROM flowengine_box_card b JOIN flowengine_card c "
            "ON c.card_id = b.card_id JOIN flowengine_agent_state_head h "
            "ON h.memory_box_id = b.box_id ORDER BY b.position"
        )
    database.close()
    assert [status for _, status in turns] == ["success"] * 3
    kinds = ("task.instruction", "agent.thought", "task.deliverable")
    assert [tuple(card) for card in cards] == [(turn, kind) for turn, _ in turns for kind in kinds]
