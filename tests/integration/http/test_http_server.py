"""A server beside the work of a process: it binds, answers, limits and stops."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.errors import HttpServerRefused
from flowengine.http import Request, Response, Route
from flowengine.http.server import HttpServer
from tests.certificates import make_certificates

SECONDS = 10.0


def echo(request: Request) -> Response:
    about = {"body": request.body.decode(), "query": dict(request.query), "id": request.arguments}
    return Response.of_json(about | {"thread": threading.current_thread().name})


async def in_the_loop(request: Request) -> Response:
    return Response.of_json({"thread": threading.current_thread().name})


def fail(request: Request) -> Response:
    raise RuntimeError("a secret of the handler")


class Gate:
    """A handler that begins, and answers when the test lets it."""

    def __init__(self) -> None:
        self.begun, self.opened, self.gone = (threading.Event() for _ in range(3))

    def wait(self, request: Request) -> Response:
        self.begun.set()
        assert self.opened.wait(SECONDS)
        return Response.of_json({"done": True}, undelivered=self.gone.set)

    async def wait_for_the_end(self, request: Request) -> Response:
        self.begun.set()
        await request.gone.wait()
        self.gone.set()
        return Response()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def server(gate: Gate) -> Iterator[HttpServer]:
    routes = [
        Route("POST", "/echo/{name}", echo),
        Route("GET", "/loop", in_the_loop),
        Route("GET", "/fail", fail),
        Route("GET", "/gate", gate.wait),
        Route("GET", "/gone", gate.wait_for_the_end),
    ]
    server = HttpServer(routes, port=0, max_body_bytes=1000)
    server.start()
    yield server
    gate.opened.set()
    server.stop()
    assert not server.is_running


def ask(server: HttpServer, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
    connection.request(method, path, body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content) if content else None


def test_a_function_is_called_in_a_thread_and_a_coroutine_in_the_loop(server: HttpServer) -> None:
    status, answer = ask(server, "POST", "/echo/ada?a=1&a=2", b"hello")
    assert status == 200
    assert answer.pop("thread") == "flowengine-http"
    assert answer == {"body": "hello", "query": {"a": ["1", "2"]}, "id": {"name": "ada"}}
    assert ask(server, "GET", "/loop")[0] == 200
    assert ask(server, "HEAD", "/loop") == (200, None)


def test_an_error_of_a_handler_does_not_leak(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    status, answer = ask(server, "GET", "/fail")
    assert (status, answer["error"]["code"]) == (500, "internal_error")
    assert "secret" not in str(answer)
    assert "a secret of the handler" in caplog.text


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/nothing", 404, "unknown_path"),
        ("/loop?" + "&".join("a=1" for _ in range(101)), 400, "bad_query"),
        ("/loop?a=%ff", 400, "bad_query"),
    ],
)
def test_a_bad_address_is_an_error_of_one_shape(
    server: HttpServer, path: str, status: int, code: str
) -> None:
    found, answer = ask(server, "GET", path)
    assert (found, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize("size", [1001, 10 * 1024 * 1024])
def test_a_large_body_is_refused_and_its_sender_reads_why(server: HttpServer, size: int) -> None:
    status, answer = ask(server, "POST", "/echo/x", b"x" * size)
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert "more than 1000 bytes" in answer["error"]["message"]
    assert ask(server, "POST", "/echo/x", b"x" * 1000)[0] == 200


@pytest.mark.parametrize("length", ["2000", "99999999999"])
def test_a_client_that_asks_first_sends_no_large_body(server: HttpServer, length: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        lines = ["POST /echo/x HTTP/1.1", "Host: x", f"Content-Length: {length}"]
        client.sendall("\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode())
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"Bad Request" not in answer


def test_a_message_that_is_not_http_ends_its_connection_alone(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert ask(server, "GET", "/loop")[0] == 200


def test_a_handler_learns_that_its_client_has_gone(server: HttpServer, gate: Gate) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"GET /gone HTTP/1.1\r\nHost: x\r\n\r\n")
        assert gate.begun.wait(SECONDS)
    assert gate.gone.wait(SECONDS)


def test_a_response_that_nobody_reads_is_reported(server: HttpServer, gate: Gate) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"GET /gate HTTP/1.1\r\nHost: x\r\n\r\n")
        assert gate.begun.wait(SECONDS)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    ask(server, "GET", "/loop")  # the loop has seen the end of the connection
    gate.opened.set()
    assert gate.gone.wait(SECONDS)


def test_stop_lets_a_running_request_finish(server: HttpServer, gate: Gate) -> None:
    answers: list[tuple[int, Any]] = []
    client = threading.Thread(target=lambda: answers.append(ask(server, "GET", "/gate")))
    client.start()
    assert gate.begun.wait(SECONDS)
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    gate.opened.set()
    client.join(SECONDS)
    stopper.join(SECONDS)
    assert answers == [(200, {"done": True})]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), SECONDS)


def test_stop_closes_a_request_that_does_not_end(server: HttpServer, gate: Gate) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"GET /gone HTTP/1.1\r\nHost: x\r\n\r\n")
        assert gate.begun.wait(SECONDS)
        server.stop(timeout=0)
        assert client.recv(65536) == b""


# --- ports ---


def test_the_next_free_port_is_taken(server: HttpServer) -> None:
    other = HttpServer([Route("GET", "/loop", in_the_loop)], port=server.port, port_attempts=20)
    other.start()
    try:
        assert server.port < other.port < server.port + 20
        assert ask(other, "GET", "/loop")[0] == 200
    finally:
        other.stop()


def test_without_a_free_port_the_error_names_host_ports_and_cure(server: HttpServer) -> None:
    with pytest.raises(HttpServerRefused) as refused:
        HttpServer([], port=server.port).start()
    assert str(refused.value) == (
        f"an HTTP server cannot be started on 127.0.0.1, port {server.port}: Address already in "
        "use; name a free port, or 0 for any, and a host of this machine"
    )


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("127.0.0.1", 70000, "a number from 0 to 65535"),
        ("127.0.0.1", -1, "a number from 0 to 65535"),
        ("192.0.2.1", 0, "Cannot assign requested address"),
        ("no.such.host.invalid", 0, "on no.such.host.invalid, port 0: "),
    ],
)
def test_an_address_that_cannot_be_bound_is_refused(host: str, port: int, text: str) -> None:
    with pytest.raises(HttpServerRefused, match=text):
        HttpServer([], host=host, port=port).start()


def test_a_server_is_started_once(server: HttpServer) -> None:
    with pytest.raises(HttpServerRefused, match="it was started before"):
        server.start()


# --- processes ---


def test_a_forked_child_leaves_the_server_to_its_parent(server: HttpServer, gate: Gate) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"GET /gone HTTP/1.1\r\nHost: x\r\n\r\n")
        assert gate.begun.wait(SECONDS)
        port, (ready, is_ready), (end, may_end) = server.port, os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            os.write(is_ready, b"x" if not server.is_running else b"-")
            os.read(end, 1)
            os._exit(0)
        try:
            assert os.read(ready, 1) == b"x"
            server.stop(timeout=0)
            # Copies of the sockets in the child would keep both open.
            assert client.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), SECONDS)
        finally:
            os.write(may_end, b"x")
            os.waitpid(child, 0)
            for end_of_pipe in (ready, is_ready, end, may_end):
                os.close(end_of_pipe)


def test_it_speaks_tls_with_the_files_of_a_certificate(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    server = HttpServer([Route("GET", "/loop", in_the_loop)], port=0, ssl_options=context)
    server.start()
    try:
        trusted = ssl.create_default_context(cafile=files.authority)
        client = http.client.HTTPSConnection(
            "localhost", server.port, timeout=SECONDS, context=trusted
        )
        client.request("GET", "/loop")
        assert client.getresponse().status == 200
        client.close()
        assert server.url == f"https://127.0.0.1:{server.port}"
    finally:
        server.stop()


def test_without_tornado_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['tornado'] = None\nimport flowengine.http\n"
    code += "try: import flowengine.http.server\nexcept ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "the HTTP server needs tornado: pip install 'flowengine[http]'\n"
