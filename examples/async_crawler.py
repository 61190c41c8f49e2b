"""Five hundred pages, one client, one event loop.

    python examples/async_crawler.py

The client keeps its connections for the next try, whichever step that belongs to: all coroutines of
a process share one event loop. `FLOWENGINE_ASYNC_CONCURRENCY` says how many run at once.
"""

from __future__ import annotations

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from flowengine import Retry, event_facet, foreach, workflow


class Client:
    """A small HTTP client with connections that stay open, as `httpx.AsyncClient` has them."""

    def __init__(self, most: int) -> None:
        self.opened = 0
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._places = asyncio.Semaphore(most)

    async def get(self, port: int, path: str) -> str:
        async with self._places:
            reader, writer = self._free.pop() if self._free else await self._open(port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].split()[0])
            body = await reader.readexactly(size)
            self._free.append((reader, writer))
            return body.decode()

    async def _open(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.opened += 1
        return await asyncio.open_connection("127.0.0.1", port)


client = Client(most=20)  # of the module: every try uses it


@event_facet(timeout=30, retry=Retry(attempts=3, first_wait=0.1))
async def fetch(port: int, page: int) -> int:
    return len((await client.get(port, f"/{page}")).split())


@event_facet
def total(counts: list[int]) -> int:
    return sum(counts)


@workflow
def crawl(port: int, pages: list[int]) -> int:
    """Count the words of all pages."""
    return total(foreach(pages, lambda page: fetch(port, page)))


class Site(BaseHTTPRequestHandler):
    """The site that is crawled: page n has n words."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"word " * int(self.path[1:])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        site.daemon_threads = True
        threading.Thread(target=site.serve_forever, daemon=True).start()
        run = crawl.start(site.server_port, list(range(500)))
        print(f"{run.result(timeout=60):,} words on 500 pages")
        print(f"at most 20 connections: {client.opened <= 20}")
