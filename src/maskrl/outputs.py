"""Where commands may write: a new file, or an earlier output of the same kind.

An output is recognised by its content. Other files are only replaced if the user asks for it; files of a run, and what is not a
file, never are.
"""

import os
from pathlib import Path

from maskrl.files import FILES, FOLDERS, kind_of

ENDS = 1 << 16  # bytes of a file's beginning and end in which its mark is looked for

# The mark that every output of a kind contains.
REPORT, MASKS = (f'<meta name="generator" content="maskrl {name}"'.encode() for name in ("report", "masks"))
MARKDOWN, LATEX = b"<!-- a table of maskrl -->", b"% a table of maskrl"
VIDEO = b"made by maskrl"
SHEET = b"maskrl check"
POLICY = b"maskrl.json"  # the name of what is stored beside an exported policy


class OutputError(Exception):
    """Something that must not be written over; the message says what is there."""


def require_output(path: Path, mark: bytes, *, force: bool = False) -> None:
    """Refuse a path at which there is something else than an earlier output with this mark. `force`: it may be any file."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = None
    if found is not None and kind_of(found.st_mode) != "a file":
        raise OutputError(f"{path} is {kind_of(found.st_mode)}, and is not written over. Name a file.")
    if (run := _run_of(path)) is not None:
        raise OutputError(f"{path} is a file of the run in {run}, and is not written over. Name another file.")
    if found is None or force or _has(path, mark):
        return
    raise OutputError(
        f"{path} is there already, and it is not an earlier output of this command. Name another file, or replace it with --force."
    )


def _run_of(path: Path) -> Path | None:
    """The directory of the run that the path is a file of; None if it is of none."""
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
