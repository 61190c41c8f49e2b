"""`flowengine api`: serve the wire protocol to agents and programs of any language."""

from __future__ import annotations

import logging
import signal
import ssl
import threading

import click


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--cert", type=click.Path(exists=True, dir_okay=False), help="Certificate chain.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False), help="Its private key.")
@click.option("--threads", type=click.IntRange(1, 100), default=8, show_default=True)
def api(host: str, port: int, cert: str | None, key: str | None, threads: int) -> None:
    """Serve the wire protocol: agents claim tasks over HTTP, programs start and read runs.

    Clients need a token (`flowengine token create`). Without --cert and --key it speaks plain
    HTTP: leave it on the loopback address, behind a proxy with TLS. SIGTERM ends it gracefully.
    """
    if bool(cert) != bool(key):
        raise click.UsageError("--cert and --key belong together")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        from flowengine.sdk.wire.server import WireServer
    except ImportError as missing:
        raise click.ClickException(str(missing)) from None
    from flowengine.cli.database import acting_engine

    with acting_engine() as engine:
        server = WireServer(engine, host, port, ssl_options=_tls(cert, key), threads=threads)
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        server.start()
        click.echo(f"listening on {server.url}")
        if not cert and host not in ("127.0.0.1", "::1", "localhost"):
            click.echo("tokens are sent in clear text: give --cert and --key", err=True)
        ended.wait()
        server.stop()
    click.echo("stopped")


def _tls(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if cert is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as problem:
        raise click.ClickException(
            f"{cert} and {key} are no certificate and its key: {problem}"
        ) from None
    return context
