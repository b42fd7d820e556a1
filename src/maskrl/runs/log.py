"""metrics.jsonl: one line for every event of a run.

A checkpoint stores the number of lines that the log had when it was written, and their digest. A resume cuts the log back to these
lines, so that every event is logged once, however often the run was killed. A log with other lines is repaired as far as possible,
and the run reports what is lost.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from maskrl.clock import Clock
from maskrl.files import LOG, RunError, open_file, read_bytes, write_whole

# random: the score of random actions. probe: measures of the encoder, see representation/latents.py. The last three are about
# the process, not the run: seconds per part, the cost of a checkpoint, and notes on problems.
Kind = Literal["update", "episode", "evaluation", "random", "probe", "timing", "checkpoint", "note"]
CLOCK = tuple(field.name for field in fields(Clock))  # fields of every event
OF_EVALUATIONS = ("evaluation", "random", "probe", "timing")
NAME = "metrics.jsonl"

Mark = Mapping[str, Any]  # lines, bytes and sha256 of a log


class Rewound(NamedTuple):
    """The result of cutting back a log."""

    notes: tuple[str, ...]  # written after the checkpoint; kept, because they record problems of the run
    checkpoint: bool  # whether the log has the checkpoint's own line
    complaint: str  # what is wrong with the log; empty if nothing is


class Log:
    """The log of a run that one process writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._end: tuple[int, int] | None = None  # inode and bytes after our last line
        self.complaints: list[str] = []  # about changes by other programs

    def append(self, event: Mapping[str, Any]) -> None:
        with open_file(self._folder, NAME, "ab") as file:
            self._compare(file.fileno())
            file.write(json.dumps(event).encode() + b"\n")
            file.flush()
            self._end = _end_of(file.fileno())

    def mark(self) -> Mark:
        """Sync the log to the disk; return its mark for a checkpoint."""
        with open_file(self._folder, NAME, "a+b", most=LOG) as file:
            self._compare(file.fileno())
            self._end = _end_of(file.fileno())
            os.fsync(file.fileno())
            file.seek(0)
            return mark_of(file.read())

    def rewind(self, clock: Clock | None, mark: Mark | None, evaluated: int | None) -> Rewound:
        """Cut the log back to a checkpoint made at this time with this mark, or to nothing.

        `evaluated`: frames of the newest evaluation in the checkpoint, for logs that do not match the mark.
        """
        content = self._content()
        whole, complaint = _part(content, mark)
        if clock is None:
            kept, rest, own = b"", list(events_of(content)), False
        elif whole is not None:
            kept, rest = whole, list(events_of(content[len(whole) :]))
            own = bool(rest) and _is_checkpoint(rest[0], clock)
            kept += _lines(rest[:1] if own else [])
        else:
            past = [event for event in events_of(content) if _is_past(event, clock, evaluated)]
            rest = [event for event in events_of(content) if not _is_past(event, clock, evaluated)]
            kept, own = _lines(past), any(_is_checkpoint(event, clock) for event in past)
        now = asdict(clock or Clock(0, 0, 0, 0.0))
        notes = {str(event.get("text")): {**event, **now} for event in rest if event["kind"] == "note"}
        new = kept + _lines(notes.values())
        if new != content:
            write_whole(self._folder / NAME, new)
        self._end = None
        return Rewound(tuple(notes), own, complaint)

    def _content(self) -> bytes:
        try:
            return read_bytes(self._folder, NAME, most=LOG)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunError(
                f"{self._folder / NAME} cannot be read: {error.strerror}. Restore it or its permissions."
            ) from error

    def _compare(self, handle: int) -> None:
        """Add a complaint, once, if the file changed since our last line."""
        if self._end is not None and self._end != _end_of(handle):
            self.complaints.append(
                f"Something else removed, replaced or changed {NAME} while the run was training. Events before this one may be "
                "missing from it."
            )


def events_of(content: bytes, *kinds: Kind) -> Iterator[dict[str, Any]]:
    """The events of a log in order, of these kinds or of all. Lines that no run has written are skipped."""
    words = [kind.encode() for kind in kinds or get_args(Kind)]
    for line in content.splitlines():
        # Most lines of a long log are updates: skip parsing lines of other kinds.
        event = _event(line) if any(word in line for word in words) else None
        if event is not None and (not kinds or event["kind"] in kinds):
            yield event


def mark_of(content: bytes) -> Mark:
    return {
        "lines": content.count(b"\n"),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _part(content: bytes, mark: Mark | None) -> tuple[bytes | None, str]:
    """The lines up to a checkpoint; None, and a complaint, if they are not in the log."""
    if not isinstance(mark, Mapping) or any(type(mark.get(name)) is not int for name in ("lines", "bytes")):
        return None, ""  # a checkpoint of an older version, or a foreign one
    part = content[: mark["bytes"]]
    if mark_of(part) == dict(mark):
        return part, ""
    lost = mark["lines"] - part.count(b"\n")
    words = f"{lost:,} of its {mark['lines']:,} lines are missing" if lost > 0 else "its lines were changed"
    return None, (
        f"{NAME} does not match the checkpoint: {words}. All readable lines are kept. The run is not "
        "affected, but its log and reports lack the lost lines."
    )


def _is_past(event: Mapping[str, Any], clock: Clock, evaluated: int | None) -> bool:
    """Whether the event is older than a checkpoint of this time. A checkpoint during an evaluation is older than its result."""
    if evaluated is not None and event["kind"] in OF_EVALUATIONS and event["frames"] > evaluated:
        return False
    return bool(event["decisions"] <= clock.decisions and event["updates"] <= clock.updates)


def _is_checkpoint(event: Mapping[str, Any], clock: Clock) -> bool:
    """Whether this is the line of a checkpoint made at this time."""
    return event["kind"] == "checkpoint" and (event["decisions"], event["updates"]) == (clock.decisions, clock.updates)


def _lines(events: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def _end_of(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_ino, found.st_size


def _event(line: bytes) -> dict[str, Any] | None:
    """A line of the log, or None if no run has written it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("kind") not in get_args(Kind):
        return None
    numbers = [event.get(name) for name in CLOCK]
    match event["kind"]:
        case "evaluation" | "random":
            returns = event.get("returns")
            numbers += [event.get("score"), *(returns if isinstance(returns, list) and returns else [None])]
        case "episode":
            numbers.append(event.get("return"))
        case "timing":
            parts = event.get("parts")
            numbers += parts.values() if isinstance(parts, dict) else [None]
    return event if all(isinstance(number, int | float) for number in numbers) else None
