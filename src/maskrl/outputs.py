"""Check where commands may write: to a new file, or over an earlier output of the same kind.

An output is recognised by its content. Other files are only replaced on request; files of a run, and anything that is not a file,
are never replaced.
"""

import os
from pathlib import Path

from maskrl.files import FILES, FOLDERS, kind_of

ENDS = 1 << 16  # bytes at a file's beginning and end to search for its mark

# The marks that outputs of each kind contain.
REPORT, MASKS = (f'<meta name="generator" content="maskrl {name}"'.encode() for name in ("report", "masks"))
MARKDOWN, LATEX = b"<!-- a table of maskrl -->", b"% a table of maskrl"
VIDEO = b"made by maskrl"
SHEET = b"maskrl check"
POLICY = b"maskrl.json"  # the name of the facts stored in an exported policy


class OutputError(Exception):
    """A path that must not be overwritten; the message says what is there."""


def require_output(path: Path, mark: bytes, *, force: bool = False) -> None:
    """Raise OutputError if the path has something other than an earlier output with this mark. `force`: allow any file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = None
    if found is not None and kind_of(found.st_mode) != "a file":
        raise OutputError(f"{path} is {kind_of(found.st_mode)} and is not overwritten. Name a file.")
    if (run := _run_of(path)) is not None:
        raise OutputError(f"{path} is a file of the run in {run} and is not overwritten. Name another file.")
    if found is None or force or _has(path, mark):
        return
    raise OutputError(
        f"{path} exists already and is not an earlier output of this command. Name another file, or replace it with --force."
    )


def _run_of(path: Path) -> Path | None:
    """The directory of the run to which the path belongs; None if there is none."""
    place = path.absolute()
    place = place.parent.resolve() / place.name
    videos = ("video.mp4", "video.gif")
    for folder in place.parents:
        first = place.relative_to(folder).parts[0]
        begun = any(os.path.lexists(folder / name) for name in ("recipe.json", "sweep.json", "pretrain.json"))
        own = (*(name for name in FILES if name not in videos), *FOLDERS, "sweep.json", "logs")
        if begun and first in own:
            return folder
    return None


def _has(path: Path, mark: bytes) -> bool:
    """Whether the mark is near the beginning or the end of a file."""
    with path.open("rb") as file:
        beginning = file.read(ENDS)
        file.seek(max(0, file.seek(0, os.SEEK_END) - ENDS))
        return mark in beginning or mark in file.read(ENDS)
