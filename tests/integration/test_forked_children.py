"""A forked child leaves its parent's connections, delayed wake-ups and process name alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from flowengine.assembly.embedded import Embedded
from flowengine.settings import Settings
from tests.servers import PostgresServer
from tests.warm import warm

BEGIN = """
import os, signal, sys, threading, time
signal.alarm(40)  # rather than to hang
os.register_at_fork(after_in_child=lambda: signal.alarm(40))
"""


DOCUMENT = """\
schedule: {cron: "30 2 * * *", timezone: Europe/Berlin}
inputs: {day: {type: date, default: "${tick.date}"}}
tasks:
  fetch: {run: [curl, "https://shop.example/${inputs.day}"], retry: {attempts: 4}, timeout: 10m}
  load: {call: shop.load, with: {rows: "${tasks.fetch.output.rows + [1]}"}}
  tidy: {sh: rm -rf scratch, depends: [load], on: ended}
result: "${tasks.load.result}"
"""


def run(script: str, *arguments: str, is_warm: bool = True) -> list[str]:
    """Run a script; in a process that is not warm, only it has imported anything."""
    command = "-W", "ignore::DeprecationWarning", "-c", BEGIN + script, *arguments
    done = subprocess.run(
        warm("python", *command) if is_warm else [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_postgres_parent_and_child_do_not_read_each_others_answers(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    script = """
from sqlalchemy import text
from flowengine.store import Database
database = Database(sys.argv[1])

def ask(number):
    with database.read() as connection:
        return connection.execute(text("SELECT :n + 0"), {"n": number}).scalar_one()

assert ask(1) == 1  # there is a connection in the pool
child = os.fork()
mine = 1 if child else 2
for _ in range(500):
    assert ask(mine) == mine
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("each its own")
"""
    assert run(script, url) == ["each", "its", "own"]
    postgres.drop_database(url)


def test_a_child_sends_the_wakeups_that_it_delays(tmp_path: Path) -> None:
    script = """
from flowengine.dispatch.debounce import Debounce
sent = []
coalescing = Debounce(sent.append, pause=0.2)
for _ in range(3):
    coalescing({"default": 1})  # one at once, two put off by a thread
child = os.fork()
if not child:
    sent.clear()
    coalescing({"default": 5})
    while not sent:
        time.sleep(0.01)
    os._exit(0 if sent == [{"default": 5}] else 1)
assert os.waitpid(child, 0)[1] == 0
print("sent")
"""
    assert run(script) == ["sent"]


def test_a_child_of_any_embedded_process_leaves_without_taking_its_parent_along(
    tmp_path: Path,
) -> None:
    script = """
from flowengine.assembly.embedded import Embedded
from flowengine.settings import Settings
settings = Settings(spool_directory=sys.argv[1], database_url=f"sqlite:///{sys.argv[1]}/f.db")
embedded = Embedded(settings)
child = os.fork()
if not child:
    sys.exit(0)  # with the exit handlers that it inherited
assert os.waitpid(child, 0)[1] == 0
print(*(server.state for server in embedded.engine.servers()))
print(*os.listdir(f"{sys.argv[1]}/f.db.boots"))
"""
    state, lock = run(script, str(tmp_path))
    assert state == "running"
    assert lock.endswith(".lock")


def test_a_child_that_is_forked_while_others_evaluate_collects_its_garbage() -> None:
    script = """
import gc
from flowengine.engine.gc_pause import gc_paused
with gc_paused():
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
assert os.waitpid(child, 0)[1] == 0
print("collected")
"""
    assert run(script) == ["collected"]


def test_a_living_process_is_not_dead_where_its_file_is_seen_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "here")
    places = [
        Settings(database_url=f"sqlite:///{tmp_path}/{name}/f.db", spool_directory=str(tmp_path))
        for name in ("here", "there")
    ]
    first, second = Embedded(places[0]), Embedded(places[1])
    try:
        found = {server.uuid: server for server in second.engine.servers()}
        server = found[first._server.uuid]
        server.lock_file = "/elsewhere/f.db.boots/" + Path(server.lock_file or "").name
        assert second._death(lambda _: "silent", server) is None
    finally:
        second.close()
        first.close()


def test_a_child_has_an_event_loop_of_its_own() -> None:
    script = """
import asyncio
from flowengine import event_facet

@event_facet(name="forks.pid")
async def pid() -> int:
    await asyncio.sleep(0)
    return os.getpid()

assert pid() == os.getpid()
child = os.fork()
assert pid() == os.getpid()
if not child:
    sys.exit(0)  # with its exit handlers
assert os.waitpid(child, 0)[1] == 0
assert pid() == os.getpid(), "the parent's loop goes on"
print("each its own")
"""
    assert run(script) == ["each", "its", "own"]


def test_a_child_that_is_forked_while_a_thread_compiles_documents_can_compile_them(
    tmp_path: Path,
) -> None:
    """A worker that replaces a pool child forks while the thread of documents works."""
    (tmp_path / "daily.yml").write_text(DOCUMENT)
    script = """
import flowengine.worker.document_folder as documents
folder, stop, loads = sys.argv[1], threading.Event(), []

def compile_always():
    while not stop.is_set():
        loads.append(len(documents.load_folder(folder).compiled))

sys.setswitchinterval(0.0002)  # a fork finds the thread anywhere
modules = set(sys.modules)
thread = threading.Thread(target=compile_always)
thread.start()
for number in range(15):
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if len(documents.load_folder(folder).compiled) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0, number
stop.set()
thread.join()
assert set(loads) == {1}
print(*sorted(set(sys.modules) - modules))  # an import holds a lock that a child would wait for
"""
    assert run(script, str(tmp_path), is_warm=False) == []
