"""The page of the protocol of agents names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from flowengine.turns.states import MessageType, TaskStatus

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "agent-protocol.md"


def test_every_test_that_the_protocol_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    places = (ROOT / "tests").rglob("test_*.py")
    defined = {name for path in places for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert named
    assert named <= defined


def test_the_page_has_every_status_and_the_messages_of_the_inbox() -> None:
    guide = (ROOT / "docs" / "guide" / "agents.md").read_text()
    assert [status for status in TaskStatus.ALL if f"| `{status}` |" not in guide] == []
    text = PAGE.read_text()
    kinds = MessageType.ALL - {MessageType.UI_ACTION}
    assert [kind for kind in kinds if f"| `{kind}` |" not in text] == []


_CODES = (
    r"max_\w+_reached|tool_ended_turn|worker_lost|model_failed|not_wanted|interrupted|stopped"
    r"|answer_cut_off|model_declined|recursion_\w+|resume_\w+_exhausted"
)


def test_every_code_of_a_turn_is_explained() -> None:
    package = ROOT / "flowengine"
    places = [*(package / "turns").glob("*.py"), *(package / "agents").glob("*.py")]
    code = "".join(path.read_text() for path in places)
    used = set(re.findall(f'"({_CODES})"', code))
    assert len(used) >= 8
    assert [name for name in sorted(used) if f"`{name}`" not in PAGE.read_text()] == []
