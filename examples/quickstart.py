"""Count the words of a few pages: three functions, run durably.

    python examples/quickstart.py

Kill it in the middle and start it again: the next process continues the unfinished run beside
its own new one. `flowengine list` shows both.
"""

import time

from flowengine import Retry, event_facet, foreach, workflow

PAGES = {
    "pages/tea": "Boil fresh water, warm the pot, and give the leaves time.",
    "pages/bread": "Flour, water, salt; a night of patience; a hot oven.",
    "pages/sea": "It is never the same, and always there.",
}


@event_facet(task_list="io", retry=Retry(attempts=3), timeout=30)
def fetch(url: str) -> str:
    time.sleep(0.4)  # the network is slow
    return PAGES[url]


@event_facet
def count_words(text: str) -> int:
    return len(text.split())


@event_facet
def total(counts: list[int]) -> int:
    return sum(counts)


@workflow
def word_count(urls: list[str]) -> int:
    counts = foreach(urls, lambda url: count_words(fetch(url)))
    return total(counts)


if __name__ == "__main__":
    run = word_count.start(urls=list(PAGES))
    print(f"run {run.id}: {run.result(timeout=60)} words")
