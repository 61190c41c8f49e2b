"""Loops with a limit, with collected errors, and nested.

python examples/loops.py
"""

import threading
import time

from flowengine import ItemError, event_facet, foreach, when, workflow

_lock = threading.Lock()
_open = 0
MOST_OPEN = 0  # highest number of concurrent connections


@event_facet
def download(url: str) -> str:
    """Fetch a page from a server that allows three connections."""
    global _open, MOST_OPEN
    with _lock:
        _open += 1
        MOST_OPEN = max(MOST_OPEN, _open)
    time.sleep(0.01)
    with _lock:
        _open -= 1
    if url.endswith("gone"):
        raise LookupError(f"404 for {url}")
    return f"text of {url}"


@event_facet
def words(text: str) -> list[str]:
    return text.split()


@event_facet
def report(pages: list[list[str]], errors: list[ItemError]) -> str:
    missing = ", ".join(f"[{error.index}] {error.message}" for error in errors)
    return f"{len(pages)} pages; missing: {missing or 'none'}"


@workflow
def crawl(urls: list[str], at_once: int = 3) -> str:
    pages = foreach(urls, lambda url: download(url), limit=at_once, collect_errors=True)
    upper = foreach(
        pages.results,
        lambda page: foreach(words(page), lambda word: when(word == "of", "OF", otherwise=word)),
    )
    return report(upper, pages.errors)


if __name__ == "__main__":
    urls = [f"site/{number}" for number in range(8)]
    urls[5] = "site/gone"
    print(crawl.start(urls).result(timeout=60))
    print(f"at most 3 connections at once: {MOST_OPEN <= 3}")
