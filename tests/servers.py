"""Real servers, private to one test run.

Each server is started on demand in a temporary directory of its own, isolated
from other servers and other test runs of the machine. Between pytest and the
server runs a small shell, the *guard*, which holds one end of a pipe. The server
lives for as long as the pipe is open: closing it stops the server, and since the
kernel closes it too, a pytest that is killed leaves neither process nor directory.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import amqp
import psutil
import psycopg
import redis
from psycopg import sql

from tests.certificates import Certificates

#: Seconds until a server that has not answered is taken to be broken. RabbitMQ takes five, and more
#: than sixty beside other tests of faults.
TIMEOUT = 240.0

# `read` returns when the pipe is closed; we never write to it. A job in the
# background would get /dev/null as its input, hence the copy of it as 3.
GUARD = """
signal=$1 directory=$2
shift 2
exec 3<&0
"$@" 3<&- &
server=$!
{ read -r _ <&3; kill -s "$signal" "$server"; } &
reader=$!
exec 3<&-
wait "$server"
kill "$reader" 2>/dev/null
rm -rf "$directory"
"""


class ServerDidNotStart(Exception):
    """A server ended, or did not answer in time; its log says why."""

    def __init__(self, program: str, log: str) -> None:
        super().__init__(program, log)
        self.program, self.log = program, log

    def __str__(self) -> str:
        return f"{self.program} did not start:\n{self.log or '(it logged nothing)'}"


class GuardedServer:
    """A server process that cannot outlive this one."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        directory: Path,
        stop_signal: str,
        user: pwd.struct_passwd | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._program = Path(command[0]).name
        self._last_words = ""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", stop_signal, directory, *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            # A Ctrl-C in the terminal is for pytest, which then stops us in order.
            start_new_session=True,
            **_as_user(user),
        )

    def wait_until(self, answers: Callable[[], bool]) -> None:
        """Return once the server answers; raise with its log when it does not."""
        deadline = time.monotonic() + TIMEOUT
        while not answers():
            if self._guard.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ServerDidNotStart(self._program, self._last_words)
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal. It is the guard's first child."""
        children = psutil.Process(self._guard.pid).children()
        min(children, key=lambda child: child.pid).send_signal(number)

    def wait(self, timeout: float) -> None:
        """Wait until the server has ended, by itself or by a signal."""
        self._guard.wait(timeout)

    def stop(self) -> None:
        """End the server and remove its directory. Idempotent."""
        if self._log.closed:
            return
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(TIMEOUT)
        self._log.seek(0)
        self._last_words = self._log.read().decode(errors="replace")
        self._log.close()


class PostgresServer:
    """A PostgreSQL on a socket in its own directory, with the default durability.

    With certificates it also listens at `localhost`, and its databases have URLs with TLS.
    """

    _OWNER = "flowengine"

    def __init__(self, certificates: Certificates | None = None) -> None:
        self._programs = postgres_programs()
        self._user = _unprivileged_user()
        self.directory = new_directory("postgres", self._user)
        self._data = self.directory / "data"
        # Without certificates it listens on a socket in its directory and on no network at all,
        # so there is no port to fight over: this number is only part of the socket's name.
        self._port = free_port() if certificates else 5432
        self._create()
        self._certificates = certificates
        if certificates:
            self._install(certificates.certificate, "server.crt")
            self._install(certificates.key, "server.key")
        self._count = 0
        self._server = self._start(self.directory)
        self._connection = self._connect()

    def _create(self) -> None:
        # Without syncing: nothing of it is needed after a power failure. The server itself
        # syncs as usual.
        created = subprocess.run(
            [
                self._programs / "initdb",
                *("--pgdata", self._data, "--username", self._OWNER, "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            text=True,
            **_as_user(self._user),
        )
        if created.returncode:
            shutil.rmtree(self.directory)
            raise ServerDidNotStart("initdb", created.stdout)

    def _install(self, file: Path, name: str) -> None:
        """Copy a file to where the server expects it, readable for the server's user alone."""
        target = self._data / name
        shutil.copyfile(file, target)
        target.chmod(0o600)
        if self._user is not None:
            os.chown(target, self._user.pw_uid, self._user.pw_gid)

    def _start(self, directory: Path) -> GuardedServer:
        """Start it; the directory given is removed when it ends."""
        network = ("127.0.0.1", "on") if self._certificates else ("", "off")
        server = GuardedServer(
            [
                self._programs / "postgres",
                *("-D", self._data, "-k", self.directory, "-p", str(self._port)),
                *("-c", f"listen_addresses={network[0]}", "-c", f"ssl={network[1]}"),
                *("-c", "max_connections=200"),
            ],
            directory=directory,
            # Immediate shutdown without a checkpoint: the data are not read again.
            stop_signal="QUIT",
            user=self._user,
        )
        server.wait_until(self._answers)
        return server

    @property
    def url(self) -> str:
        """The server's own database; tests should ask for a `new_database`."""
        return self._url_of("postgres")

    def new_database(self, template: str = "template1") -> str:
        """Create a database and return its URL. Without a template it is empty."""
        self._count += 1
        name = f"test_{self._count}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self._connection.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return self._url_of(name)

    def drop_database(self, url: str) -> None:
        """Drop a database made by `new_database`, with whoever is still connected to it."""
        drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
        self._connection.execute(drop.format(sql.Identifier(database_name(url))))

    def stop(self) -> None:
        self._connection.close()
        self._server.stop()

    def _url_of(self, database: str) -> str:
        if self._certificates:
            tls = f"sslmode=verify-full&sslrootcert={quote(str(self._certificates.authority))}"
            return f"postgresql+psycopg://{self._OWNER}@localhost:{self._port}/{database}?{tls}"
        host = quote(str(self.directory))
        return f"postgresql+psycopg://{self._OWNER}@/{database}?host={host}&port={self._port}"

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=str(self.directory),
            port=self._port,
            user=self._OWNER,
            dbname="postgres",
            autocommit=True,
        )

    def _answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True


class RedisServer:
    """A Redis without persistence: it is empty after a restart.

    With a directory for its `data` and options that make it write there, it keeps its keys.
    """

    def __init__(self, *options: str, data: Path | None = None) -> None:
        self._program = _program("redis-server")
        self._options, self._data = options or ("--appendonly", "no"), data
        self._port = free_port()
        self._server: GuardedServer | None = None
        self.start()

    @property
    def url(self) -> str:
        """The same address before and after a restart."""
        return f"redis://127.0.0.1:{self._port}/0"

    @property
    def is_running(self) -> bool:
        return self._server is not None

    def start(self) -> None:
        """Start it, or do nothing when it runs."""
        if self._server is not None:
            return
        self.directory = new_directory("redis")
        server = GuardedServer(
            [
                self._program,
                *("--port", str(self._port), "--bind", "127.0.0.1"),
                *("--dir", self._data or self.directory, "--save", "", *self._options),
            ],
            directory=self.directory,
            stop_signal="KILL",
        )
        server.wait_until(self._answers)
        self._server = server

    def stop(self) -> None:
        """Kill it; `start` gives a new one at the same address."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def flush(self) -> None:
        """Forget every key of every database."""
        with redis.Redis(port=self._port) as client:
            client.flushall()

    def limit_memory(self, size: int) -> None:
        """Refuse every write that takes memory above this size in bytes; 0 is no limit."""
        with redis.Redis(port=self._port) as client:
            client.config_set("maxmemory", size)

    def freeze(self) -> None:
        """Suspend it: connections stay open and get no answer."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._server is not None:
            self._server.send(number)

    def _answers(self) -> bool:
        # A server that took the port before us answers too, but from another directory.
        with redis.Redis(port=self._port, decode_responses=True) as client:
            try:
                place = str(self._data or self.directory)
                return bool(client.config_get("dir") == {"dir": place})
            except (redis.ConnectionError, redis.BusyLoadingError):
                return False


class RabbitServer:
    """A RabbitMQ node without a cluster, on ports of its own. It is empty after a restart.

    With certificates it also listens for TLS.
    """

    def __init__(self, certificates: Certificates | None = None) -> None:
        self.certificates = certificates
        self._tls_port = free_port()
        self._program = rabbit_program()
        self._mapper_program = _program("epmd")
        self._port = free_port()
        self._node = f"flowengine-{self._port}@localhost"
        self._servers: list[GuardedServer] = []
        self.start()

    @property
    def url(self) -> str:
        """The same address before and after a restart."""
        return f"amqp://guest:guest@127.0.0.1:{self._port}//"

    @property
    def tls_url(self) -> str:
        return f"amqps://guest:guest@localhost:{self._tls_port}//"

    @property
    def is_running(self) -> bool:
        return bool(self._servers)

    def start(self) -> None:
        """Start it, or do nothing when it runs. It takes five seconds and more."""
        if self._servers:
            return
        mapper_port = str(free_port())
        self._servers.append(self._start_mapper(mapper_port))
        self.directory = new_directory("rabbit")
        configuration = self.directory / "rabbitmq.conf"
        configuration.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._port}\n"
            f"cluster_name = {self._node}\n"
            "log.console.level = warning\n" + self._tls_listener()
        )
        node = GuardedServer(
            [self._program],
            directory=self.directory,
            stop_signal="KILL",
            environment={
                "HOME": str(self.directory),  # where its cookie is
                "RABBITMQ_NODENAME": self._node,
                "RABBITMQ_CONF_ENV_FILE": os.devnull,  # not the machine's
                "RABBITMQ_CONFIG_FILE": str(configuration),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "no-plugins"),
                "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
                "RABBITMQ_LOG_BASE": str(self.directory / "log"),
                "RABBITMQ_LOGS": "-",
                "RABBITMQ_DIST_PORT": str(free_port()),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                    "-kernel inet_dist_use_interface {127,0,0,1}"
                ),
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "ERL_EPMD_PORT": mapper_port,
                # Its script then becomes the node. Otherwise it would stay in between, and
                # the guard would kill the script alone.
                "RUNNING_UNDER_SYSTEMD": "1",
            },
        )
        self._servers.append(node)
        node.wait_until(self._answers)

    def _tls_listener(self) -> str:
        if self.certificates is None:
            return ""
        return (
            f"listeners.ssl.1 = 127.0.0.1:{self._tls_port}\n"
            f"ssl_options.cacertfile = {self.certificates.authority}\n"
            f"ssl_options.certfile = {self.certificates.certificate}\n"
            f"ssl_options.keyfile = {self.certificates.key}\n"
        )

    def _start_mapper(self, port: str) -> GuardedServer:
        """Start Erlang's port mapper. A node that finds none starts one that outlives it."""
        self.mapper_directory = new_directory("epmd")
        command = [self._mapper_program, "-address", "127.0.0.1", "-port", port]
        mapper = GuardedServer(command, directory=self.mapper_directory, stop_signal="KILL")
        mapper.wait_until(lambda: _listens(int(port)))
        return mapper

    def stop(self) -> None:
        """Kill it with all its queues; `start` gives a new one."""
        while self._servers:
            self._servers.pop().stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Suspend the node: connections stay open and get no answer."""
        self._servers[-1].send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._servers[-1].send(signal.SIGCONT)

    def _answers(self) -> bool:
        # A server that took the port before us answers too, but under another name.
        try:
            with amqp.Connection(f"127.0.0.1:{self._port}", connect_timeout=5) as connection:
                return bool(connection.server_properties["cluster_name"] == self._node)
        except (OSError, amqp.AMQPError):
            return False


def database_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


def postgres_programs() -> Path:
    """The directory of `initdb` and `postgres`: on the PATH, or the newest of Debian's."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = [p.parents[1] for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not versions:
        raise FileNotFoundError("initdb is missing: scripts/ensure-servers installs PostgreSQL")
    return max(versions, key=lambda version: float(version.name)) / "bin"


def rabbit_program() -> str:
    """RabbitMQ's own script. The one that Debian puts on the PATH changes the user."""
    behind = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return str(behind) if behind.exists() else _program("rabbitmq-server")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is missing: scripts/ensure-servers installs it")
    return found


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Another user, when we are root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def _as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def new_directory(purpose: str, owner: pwd.struct_passwd | None = None) -> Path:
    """Make a directory that another user may own."""
    # A socket's path must be short, and another user must be able to get there.
    place = Path(tempfile.gettempdir())
    if len(str(place)) > 20 or not place.stat().st_mode & stat.S_IXOTH:
        place = Path("/tmp")
    directory = Path(tempfile.mkdtemp(prefix=f"flowengine-{purpose}-", dir=place))
    if owner is not None:
        os.chown(directory, owner.pw_uid, owner.pw_gid)
    return directory


def free_port() -> int:
    # From below the range that the kernel lends to outgoing connections: one of
    # those could take the port while the server restarts.
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
