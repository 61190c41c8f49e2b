"""The command line, in an empty directory and real processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flowengine.store.migrations import HEAD
from tests.acceptance import commands

FLOWENGINE = str(Path(sys.executable).parent / "flowengine")
EXAMPLE = str(Path(__file__).parent.parent.parent / "examples" / "quickstart.py")
SLOW = """
import time
from pathlib import Path
from flowengine import event_facet, foreach, workflow

@event_facet
def nap(n: int) -> int:
    time.sleep(0.2)
    return n

@event_facet
def gate() -> str:
    while not Path("open").exists():
        time.sleep(0.05)
    return "passed"

@event_facet
def boom(text: str) -> int:
    raise ValueError(f"cannot read {text!r}")

@workflow
def naps(count: list[int]) -> list[int]:
    return foreach(count, lambda n: nap(n))

@workflow
def many(texts: list[str]) -> list[int]:
    return foreach(texts, lambda text: boom(text))

@workflow
def passes() -> str:
    return gate()

@workflow
def reads(text: str, times: int = 1) -> int:
    return boom(text)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def flowengine(here: Path, *words: str, expect: int = 0) -> str:
    done = commands.flowengine(words, here, {"COLUMNS": "200"})
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_run_shows_the_progress_and_suggests_the_next_commands(here: Path) -> None:
    output = flowengine(here, "run", f"{EXAMPLE}:word_count", "-i", 'urls=["pages/tea"]')
    assert "✓ word_count.foreach[0].count_words" in output
    assert "result  11" in output
    assert "sqlite:///flowengine.db" in output
    assert "flowengine show" in output


def test_run_with_json_prints_only_json(here: Path) -> None:
    output = flowengine(here, "run", "slow:naps", "--input", "count=[1,2]", "--json")
    run = json.loads(output)
    assert (run["state"], run["outputs"]) == ("COMPLETED", {"result": [1, 2]})
    shown = json.loads(flowengine(here, "show", run["id"], "--json"))
    assert {step["path"] for step in shown["steps"]} >= {"naps", "naps.foreach[1].nap"}
    (listed,) = json.loads(flowengine(here, "list", "--json"))
    assert listed["id"] == run["id"]


def test_a_failed_run_prints_the_step_and_the_error_and_exits_with_one(here: Path) -> None:
    output = flowengine(here, "run", "slow:reads", "-i", "text=12", expect=1)
    assert "failed  reads.boom: ValueError: cannot read '12'" in output
    listed = flowengine(here, "list")
    assert "FAILED" in listed
    assert "reads.boom: ValueError" in listed
    shown = flowengine(here, "show", listed.split("\n")[1].split()[0])
    assert "✗ boom" in shown
    assert 'raise ValueError(f"cannot read {text!r}")' in shown, "with the traceback"


def test_show_prints_the_tracebacks_of_the_first_failed_steps(here: Path) -> None:
    flowengine(here, "run", "slow:many", "-i", f"texts={json.dumps(list('abcdefg'))}", expect=1)
    shown = flowengine(here, "show", flowengine(here, "list").split("\n")[1].split()[0])
    assert shown.count("Traceback (most recent call last)") == 5
    assert "… 2 more steps with a traceback: flowengine show " in shown


def test_a_run_killed_in_the_middle_is_resumed(here: Path) -> None:
    words = [FLOWENGINE, "run", "slow:naps", "-i", f"count={list(range(40))}"]
    environment = {**os.environ, "FLOWENGINE_CONCURRENCY": "2"}
    child = subprocess.Popen(words, cwd=here, env=environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert "complete" in child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert "RUNNING" in flowengine(here, "list")
    output = flowengine(here, "resume", "slow")
    assert "✓ naps  complete" in output
    (run,) = json.loads(flowengine(here, "list", "--json"))
    assert run["outputs"] == {"result": list(range(40))}


DURABLE = """
import time
from flowengine import event_facet, sleep, step, workflow

@event_facet
def one(n: int) -> int:
    return n + 1

def tenfold(n: int) -> int:
    return 10 * n

@workflow
async def naps(n: int) -> int:
    n = await step(tenfold, await one(n))
    await sleep(1)
    return n

if __name__ == "__main__":
    run = naps.start(1)
    while len(run.steps()) < 5:  # the run, the function, and its three calls
        time.sleep(0.01)
"""


def test_a_function_of_a_main_file_is_resumed_as_soon_as_its_code_fits(here: Path) -> None:
    file = here / "durable.py"
    file.write_text(DURABLE)
    subprocess.run([sys.executable, file.name], cwd=here, check=True, timeout=60)
    file.write_text(DURABLE.replace("await one(n)", "await sleep(n)"))
    output = flowengine(here, "resume", "durable", expect=1)
    assert "the record has durable.one, the code calls flowengine.sleep" in output
    file.write_text(DURABLE)
    assert "result  20" in flowengine(here, "resume", "durable")


def test_a_start_that_does_not_wait_begins_no_step(here: Path) -> None:
    """A facet that never ends would keep the process from ending."""
    run_id = flowengine(here, "run", "slow:passes", "--no-wait").strip()
    (run,) = json.loads(flowengine(here, "list", "--json"))
    assert (run["id"], run["state"]) == (run_id, "RUNNING")
    steps = json.loads(flowengine(here, "show", run_id, "--json"))["steps"]
    assert [step["task_state"] for step in steps if step["path"] == "passes.gate"] == ["pending"]


def test_an_alarm_raised_without_the_code_does_not_stop_a_process_with_it(here: Path) -> None:
    (here / "other.py").write_text("")
    flowengine(here, "run", "slow:passes", "--no-wait")
    output = flowengine(here, "resume", "other", expect=1)
    assert "slow.gate" in output
    (here / "open").touch()
    assert "✓ passes  complete" in flowengine(here, "resume", "slow")


def test_ctrl_c_ends_the_command_and_resume_continues_without_a_loss(here: Path) -> None:
    words = [FLOWENGINE, "run", "slow:naps", "-i", f"count={list(range(20))}"]
    environment = {**os.environ, "FLOWENGINE_CONCURRENCY": "1"}
    child = subprocess.Popen(
        words,
        cwd=here,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background shell makes its children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, complaints = child.communicate(timeout=20)
    assert child.returncode == 1
    assert "Traceback" not in complaints
    flowengine(here, "resume", "slow")
    (run,) = json.loads(flowengine(here, "list", "--json"))
    assert run["state"] == "COMPLETED"
    shown = json.loads(flowengine(here, "show", run["id"], "--json"))
    assert {step["losses"] for step in shown["steps"]} == {0}


def test_a_key_starts_one_run_only(here: Path) -> None:
    first = json.loads(
        flowengine(here, "run", "slow:naps", "-i", "count=[1]", "--key", "k", "--json")
    )
    again = json.loads(
        flowengine(here, "run", "slow:naps", "-i", "count=[2]", "--key", "k", "--json")
    )
    assert first["id"] == again["id"]


def test_a_key_of_a_failed_run_can_be_used_again(here: Path) -> None:
    start = ("run", "slow:reads", "-i", "text=a", "--key", "k", "--json")
    first = json.loads(flowengine(here, *start, expect=1))
    refused = flowengine(here, *start, "--if-failed", "raise", expect=1)
    assert f"key 'k' was used for run {first['id']}, which failed at reads.boom" in refused
    second = json.loads(flowengine(here, *start, "--if-failed", "start", expect=1))
    assert second["id"] != first["id"]
    assert first["key"] == second["key"] == "k"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nowhere:x"], "there is no module 'nowhere'"),
        (["run", "nowhere.py:x"], "there is no file nowhere.py"),
        (
            ["run", "slow:nap"],
            "slow has no workflow 'nap'; it has: slow:naps, slow:many, slow:passes, slow:reads",
        ),
        (
            ["run", "slow"],
            "slow has 4 workflows, name one: slow:naps, slow:many, slow:passes, slow:reads",
        ),
        (["run", "slow:naps"], "'count'"),
        (["run", "slow:naps", "-i", "count"], "'count' is not name=value"),
        (["run", "slow:naps", "-i", "count=[1]", "-i", "cuont=2"], "cuont"),
        (["run", "slow:naps", "-i", 'count=["x"]'], "count"),
        (["show", "abc"], "there is no database sqlite:///flowengine.db yet"),
        (["list"], "there is no database"),
    ],
)
def test_invalid_arguments_print_an_error_without_traceback(
    here: Path, words: list[str], says: str
) -> None:
    done = commands.flowengine(words, here, {"COLUMNS": "200"})
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "flowengine.db").exists(), "nothing was made"


def test_upgrade_creates_a_database_and_reports_it(here: Path) -> None:
    assert "upgraded from nothing to" in flowengine(here, "db", "upgrade")
    assert "is up to date" in flowengine(here, "db", "upgrade")
    assert "no runs" in flowengine(here, "list")


def test_printed_statements_say_for_which_database_they_are(here: Path) -> None:
    printed = flowengine(here, "db", "upgrade", "--sql")
    assert printed.startswith(f"-- flowengine: schema none to {HEAD}, for SQLite\n")


def test_no_statements_are_printed_for_a_newer_schema_and_one_with_less_is_refused(
    here: Path,
) -> None:
    flowengine(here, "db", "upgrade")
    with closing(sqlite3.connect(here / "flowengine.db")) as database, database:
        database.execute("UPDATE flowengine_alembic_version SET version_num = '9001'")
    printed = flowengine(here, "db", "upgrade", "--sql")
    assert printed == f"-- revision 9001: newer than {HEAD}, nothing to upgrade\n"
    with closing(sqlite3.connect(here / "flowengine.db")) as database, database:
        database.execute("UPDATE flowengine_counter SET value = 9001 WHERE name = 'schema.lowest'")
    refused = flowengine(here, "db", "upgrade", "--sql", expect=1)
    assert "which needs a flowengine of revision 9001 or later" in refused


def test_tenants_filter_the_list_and_bind_the_commands(here: Path) -> None:
    runs = {}
    for tenant in ("shop", "press"):
        words = ("run", "slow:naps", "-i", "count=[]", "--no-wait")
        done = commands.flowengine(words, here, {"FLOWENGINE_TENANT": tenant})
        assert done.returncode == 0, done.stderr
        runs[tenant] = done.stdout.strip()
    assert "tenant" in flowengine(here, "list").splitlines()[0]
    (listed,) = json.loads(flowengine(here, "list", "--json", "--tenant", "shop"))
    assert (listed["id"], listed["tenant"]) == (runs["shop"], "shop")
    assert "  tenant press" in flowengine(here, "show", runs["press"])
    bound = {"FLOWENGINE_TENANT": "shop", "COLUMNS": "200"}
    for words, code, says in (
        (["list"], 0, runs["shop"][:8]),
        (["show", runs["shop"]], 0, "✓ naps"),
        (["show", runs["press"]], 1, f"there is no run '{runs['press']}' in this database"),
        (["list", "--tenant", "press"], 1, "tenant 'press' is refused: this app"),
    ):
        done = commands.flowengine(words, here, bound)
        assert done.returncode == code, done.stderr
        assert says in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    assert runs["press"][:8] not in commands.flowengine(["list"], here, bound).stdout


def test_a_schema_needs_postgresql(here: Path) -> None:
    done = commands.flowengine(["db", "upgrade"], here, {"FLOWENGINE_SCHEMA": "shop"})
    assert done.returncode == 1
    assert "SQLite has no schemas: FLOWENGINE_SCHEMA='shop' needs a PostgreSQL" in done.stderr


def test_a_list_that_is_piped_has_one_line_for_each_run(here: Path) -> None:
    text = "a long text, " * 30
    flowengine(here, "run", "slow:reads", "-i", f"text={text}", expect=1)
    flowengine(here, "run", "slow:naps", "-i", "count=[]")
    for columns in ("20", "80"):
        done = commands.flowengine(["list"], here, {"COLUMNS": columns})
        heading, completed, failed = done.stdout.splitlines()
        assert heading.startswith("run ")
        assert "COMPLETED" in completed
        assert text.strip() in failed
        assert all(row == row.rstrip() for row in done.stdout.splitlines())
        shown = commands.flowengine(["show", failed.split()[0]], here, {"COLUMNS": columns}).stdout
        (step,) = [row for row in shown.splitlines() if row.startswith("└── ✗ boom")]
        assert text.strip() in step


def test_list_takes_a_short_name_or_a_part_of_a_workflow(here: Path) -> None:
    flowengine(here, "run", "slow:naps", "-i", "count=[]")
    flowengine(here, "run", "slow:reads", "-i", "text=x", expect=1)

    def listed(*words: str) -> set[str]:
        found = json.loads(flowengine(here, "list", "--json", *words))
        return {run["workflow"] for run in found}

    assert listed("--workflow", "slow.naps") == {"slow.naps"}
    assert listed("--workflow", "naps") == {"slow.naps"}
    assert listed("--workflow", "NAP") == {"slow.naps"}
    assert listed("--workflow", "slow") == {"slow.naps", "slow.reads"}
    assert listed("--workflow", "naps", "--state", "failed") == set(), "of this workflow alone"
    assert listed("--workflow", "n_ps") == set(), "it is text, not a pattern"
    output = flowengine(here, "list", "--workflow", "nothing")
    assert "no runs of a workflow with 'nothing' in its name" in output
