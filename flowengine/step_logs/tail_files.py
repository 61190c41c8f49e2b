"""The last lines of a log that is too long, on disk while its try goes on.

They are stored when the try ends. Until then they are in two files that take turns: the older one
is removed when the newer one has as many bytes as are kept. So a killed process leaves them, and
the files stay small however much a try writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flowengine.step_logs.cap import TAIL_BYTES, Cap, gap_text
from flowengine.step_logs.chunks import ChunkLines, LogChunk, TryKey
from flowengine.step_logs.lines import notice_line
from flowengine.step_logs.segments import Seal, Segment, locked, records_of, segments_in

SUFFIX = ".tail"


class TailFiles:
    """The files of one try."""

    def __init__(self, directory: Path, scope: str, key: TryKey, seal: Seal, first: int) -> None:
        """`first` is the number of the first line that is not among the first bytes."""
        self._place, self._seal = (directory, scope), seal
        self._about = ChunkLines(key, first)
        self._files: list[Segment] = []
        self.is_whole = True  #: no line is missing
        self.unsent = 0  #: chunks that are not stored, since the try has ended

    def add(self, number: int, line: str, most: int) -> None:
        """Add a line; `most` bytes of the last lines stay. Raises OSError."""
        if not self._files or self._files[-1].size >= most:
            self._files.append(Segment(*self._place, self._seal, SUFFIX))
        if len(self._files) > 2:
            self._files.pop(0).remove()
        self._files[-1].append(self._about, number, line)

    def remove(self) -> None:
        for file in self._files:
            file.remove()
        self._files.clear()

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()


def tail_chunks(
    numbered: Sequence[tuple[int, str]], key: TryKey, first: int, tail_bytes: int = TAIL_BYTES
) -> list[ChunkLines]:
    """Return the chunks of a tail, the same for its process and for a reader of its files."""
    cap = Cap(0, tail_bytes)
    for number, line in numbered:
        cap.admits(number, line)
    tail = cap.take_tail()
    if tail and tail[0][0] > first:
        skipped = tail[0][0] - first
        # The time of the next line, so that sorting by time keeps the order.
        at = tail[0][1][1:].partition(",")[0]
        tail.insert(0, (tail[0][0] - 1, notice_line(int(at), gap_text(skipped))))
    chunks: list[ChunkLines] = []
    for number, line in tail:
        if not chunks or not chunks[-1].takes(number, line):
            chunks.append(ChunkLines(key, number))
        chunks[-1].add(line)
    return chunks


@contextmanager
def left_tails(
    directory: Path,
    scope: str,
    unseal: Seal,
    set_aside: Callable[[Path, Exception], object],
    tail_bytes: int = TAIL_BYTES,
) -> Iterator[list[LogChunk]]:
    """Return the chunks of tails that dead processes have left; then their files are removed.

    A file with lines that cannot be read is set aside, with the first problem of it.
    """
    with ExitStack() as locks:
        found = segments_in(directory, scope, SUFFIX)
        paths = [path for path in found if locks.enter_context(locked(path))]
        tries: dict[tuple[TryKey, int], dict[int, str]] = {}
        problems: dict[Path, list[Exception]] = {path: [] for path in paths}
        for path in paths:
            try:
                for key, first, number, line in records_of(path, unseal, problems[path]):
                    tries.setdefault((key, first), {})[number] = line
            except OSError as problem:
                problems[path].append(problem)
        yield [
            chunk.stored()
            for (key, first), lines in tries.items()
            for chunk in tail_chunks(sorted(lines.items()), key, first, tail_bytes)
        ]
        for path in paths:
            if problems[path]:
                set_aside(path, problems[path][0])
            else:
                path.unlink(missing_ok=True)
