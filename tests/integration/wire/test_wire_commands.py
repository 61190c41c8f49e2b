"""`flowengine token` and `flowengine api`, as a person types them."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from flowengine.cli import main
from tests.celery_nodes import clean_environment
from tests.certificates import make_certificates
from tests.integration.test_operations_commands import runner
from tests.warm import warm

Command = Callable[..., Result]


@pytest.fixture
def command(url: str) -> Command:
    def call(*args: str) -> Result:
        return runner().invoke(main, list(args), env={"FLOWENGINE_DATABASE_URL": url})

    return call


def test_a_token_is_created_listed_and_revoked(command: Command) -> None:
    options = ("--scope", "claim", "--scope", "read", "--task-list", "gpu", "--tenant", "acme")
    made = command("token", "create", "node", *options, "--expires", "90d")
    assert made.exit_code == 0, made.output
    assert made.output.startswith("fe_")
    assert command("token", "list").output == "node: valid; claim, read; gpu; tenant acme\n"
    assert command("token", "revoke", "node").output == "token node is revoked\n"
    (row,) = json.loads(command("token", "list", "--json").output)
    assert (row["state"], row["scopes"]) == ("revoked", ["claim", "read"])
    assert "digest" not in row
    assert row["expires"] - row["created"] == 90 * 86_400_000


def test_a_token_may_claim_if_nothing_else_is_said(command: Command) -> None:
    made = json.loads(command("token", "create", "node", "--json").output)
    assert made["token"].startswith("fe_")
    assert (made["scopes"], made["task_lists"], made["expires"]) == (["claim"], [], None)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("token", "revoke", "other"), 1, "there is no token of this name"),
        (("token", "create", "a:b"), 1, "without a colon"),
        (("token", "create", "a", "--scope", "root"), 2, "'root' is not one of"),
        (("token", "create", "a", "--expires", "soon"), 2, "is no age"),
        (("api", "--cert", __file__), 2, "--cert and --key belong together"),
        (("api", "--cert", __file__, "--key", __file__), 1, "are no certificate and its key"),
        (("api", "--port", "70000"), 2, "70000"),
        (("api", "--host", "192.0.2.1"), 1, "cannot be started on 192.0.2.1"),
    ],
)
def test_a_command_that_is_wrong_says_why(
    command: Command, args: tuple[str, ...], code: int, text: str
) -> None:
    done = command(*args)
    assert done.exit_code == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_the_server_speaks_tls_and_ends_by_a_signal(url: str, tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    options = ["--port", "0", "--cert", str(files.certificate), "--key", str(files.key)]
    server = subprocess.Popen(
        warm("python", "-m", "flowengine", "api", *options),
        env={**clean_environment(), "FLOWENGINE_DATABASE_URL": url},
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline().strip()
        address = line.removeprefix("listening on ")
        assert address.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=files.authority)
        with urllib.request.urlopen(f"{address}/v1/openapi.json", context=trusted) as answer:
            assert json.load(answer)["openapi"] == "3.1.0"
        server.send_signal(signal.SIGTERM)
        assert server.communicate(timeout=30)[0] == "stopped\n"
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate()
