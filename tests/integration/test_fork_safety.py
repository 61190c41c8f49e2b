"""A SQLite file that a process has open, and a fork: as Celery forks its pool children."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.warm import warm

BEGIN = """
import os, signal, sqlite3, sys, threading, time
from sqlalchemy import text
from flowengine.store import Database

signal.alarm(40)  # rather than to hang
os.register_at_fork(after_in_child=lambda: signal.alarm(40))
file = sys.argv[1]
database = Database(f"sqlite:///{file}")

def insert(database, word):
    with database.write() as connection:
        connection.execute(text("INSERT INTO word VALUES (:word)"), {"word": word})

def words():
    with database.read() as connection:
        return sorted(connection.execute(text("SELECT word FROM word")).scalars())

with database.write() as connection:
    connection.execute(text("CREATE TABLE word (word VARCHAR(10))"))
"""


def run(script: str, directory: Path) -> list[str]:
    file = str(directory / "flow.db")
    done = subprocess.run(
        warm("python", "-W", "ignore::DeprecationWarning", "-c", BEGIN + script, file),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_child_that_is_forked_during_a_transaction_can_write(tmp_path: Path) -> None:
    script = """
begun = threading.Event()

def slowly():
    with database.write() as connection:
        begun.set()
        time.sleep(0.5)
        connection.execute(text("INSERT INTO word VALUES ('parent')"))

thread = threading.Thread(target=slowly)
thread.start()
begun.wait()
child = os.fork()
if not child:
    insert(Database(f"sqlite:///{file}"), "child")
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
print(*words())
"""
    assert run(script, tmp_path) == ["child", "parent"]


def test_a_fork_closes_the_connection_that_is_kept_between_statements(tmp_path: Path) -> None:
    script = """
def descriptors():
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.lexists(link) and file in os.readlink(link)]

def count():
    with database.autocommit() as session:
        session.rows("INSERT INTO word VALUES ('one')")
        return session.rows("SELECT count(*) FROM word")[0][0]

assert count() == 1 and descriptors()
child = os.fork()
if not child:
    os._exit(bool(descriptors()) or count() != 2)
assert os.waitpid(child, 0)[1] == 0
print(count())
"""
    assert run(script, tmp_path) == ["3"]


def test_commits_of_a_child_stay_after_its_parent_closes(tmp_path: Path) -> None:
    # The process that closes the file last empties the write-ahead log and removes it. A child
    # whose locks nobody sees would go on writing into a file that has no name any more.
    script = """
words()
go, going = os.pipe()
child = os.fork()
if not child:
    mine = Database(f"sqlite:///{file}")
    insert(mine, "before")
    os.read(go, 1)
    insert(mine, "after")
    os._exit(0)
while words() != ["before"]:
    time.sleep(0.01)
database.close()
other = sqlite3.connect(file)
other.execute("SELECT * FROM word").fetchall()
other.close()
os.write(going, b".")
assert os.waitpid(child, 0)[1] == 0
print(*words())
"""
    assert run(script, tmp_path) == ["after", "before"]


def test_a_fork_inside_a_transaction_does_not_deadlock(tmp_path: Path) -> None:
    script = """
with database.write() as connection:
    child = os.fork()
    if not child:
        os._exit(0)
    connection.execute(text("INSERT INTO word VALUES ('parent')"))
assert os.waitpid(child, 0)[1] == 0
print(*words())
"""
    assert run(script, tmp_path) == ["parent"]


@pytest.mark.parametrize("threads", [1, 4])
def test_forks_and_transactions_do_not_stop_each_other(tmp_path: Path, threads: int) -> None:
    script = f"""
over = threading.Event()

def busily():
    while not over.is_set():
        insert(database, "parent")
        words()

busy = [threading.Thread(target=busily) for _ in range({threads})]
for thread in busy:
    thread.start()
for _ in range(5):
    child = os.fork()
    if not child:
        insert(database, "child")  # the parent's own object will do: nothing of it is open
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
over.set()
for thread in busy:
    thread.join()
print(words().count("child"))
"""
    assert run(script, tmp_path) == ["5"]


def test_a_database_in_memory_survives_the_forks_of_its_process(tmp_path: Path) -> None:
    script = """
database = Database("sqlite://")
with database.write() as connection:
    connection.execute(text("CREATE TABLE word (word VARCHAR(10))"))
insert(database, "kept")
child = os.fork()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(*words())
"""
    assert run(script, tmp_path) == ["kept"]
