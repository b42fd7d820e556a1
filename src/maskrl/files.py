"""How the files of a run are opened. Its directory may come from a stranger. The standard library alone.

A file must be regular, within a size where one is known, and no part of its path below the directory may be a symbolic link.
A FIFO would hang its reader, a device would fill the memory, and a link would lead out of the directory.
"""

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import IO, Any, Literal

SMALL = 1 << 24  # bytes of a JSON file at most, such as recipe.json
LOG = 1 << 30  # bytes of metrics.jsonl at most: some thousand times that of the paper's longest run

# The files of a run or a pre-training, with the bytes that each may have, and its folders, with the folders that each may have.
# Anything else in their place is refused.
FILES: Mapping[str, int | None] = {
    **dict.fromkeys(("recipe.json", "versions.json", "status.json", "lock", "probe.json", "pretrain.json"), SMALL),
    **{"metrics.jsonl": LOG, "encoder.safetensors": None, "video.mp4": None, "video.gif": None},
}
FOLDERS: Mapping[str, tuple[str, ...]] = {"checkpoints": ("unfinished",), "replay": (), "tensorboard": ()}

Mode = Literal["rb", "ab", "r+b", "a+b"]
FLAGS = {
    "rb": os.O_RDONLY,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "r+b": os.O_RDWR,
    "a+b": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}
# Windows has none of these. There a path is checked before it is opened, which is enough unless it is changed in between.
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
CAREFUL = NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
HAS_HANDLES = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd  # of directories


class RunError(Exception):
    """A problem with a run directory that the user can fix; the message says how."""


def kind_of(mode: int) -> str:
    """What a file is, by its mode."""
    kinds = {
        stat.S_ISLNK: "a symbolic link",
        stat.S_ISFIFO: "a named pipe (FIFO)",
        stat.S_ISSOCK: "a socket",
        stat.S_ISCHR: "a device",
        stat.S_ISBLK: "a device",
        stat.S_ISDIR: "a directory",
        stat.S_ISREG: "a file",
    }
    return next((words for is_kind, words in kinds.items() if is_kind(mode)), "no file")


def status_of(folder: Path, name: str, expected: str = "a file") -> os.stat_result | None:
    """The status of a file, or of `a directory`, below a folder; None if it is missing. Refuses every other kind, and links."""
    parts = _parts(folder, name)
    for depth in range(1, len(parts) + 1):
        path = folder.joinpath(*parts[:depth])
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return None
        except NotADirectoryError:  # the folder itself
            raise RunError(f"{folder} is not a directory.") from None
        wanted = expected if depth == len(parts) else "a directory"
        if kind_of(found.st_mode) != wanted:
            raise _refused(path, found.st_mode, wanted)
    return found


def open_file(folder: Path, name: str, mode: Mode = "rb", *, most: int | None = None) -> IO[bytes]:
    """Open a regular file below a folder. `most`: bytes that it may have. To be written, it must have one name alone.

    Raises OSError as `open` does, and RunError for what is not such a file.
    """
    status_of(folder, name)  # opening a device may have an effect: so check first
    handle = _open(folder, _parts(folder, name), FLAGS[mode] | CAREFUL)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):  # it was replaced in between
            raise _refused(folder / name, found.st_mode, "a file")
        if mode != "rb" and found.st_nlink > 1:
            raise RunError(
                f"{folder / name} is a hard link: what is written to it would change {found.st_nlink} files. Replace it by a copy."
            )
        if most is not None and found.st_size > most:
            raise _too_large(folder / name, found.st_size, most)
        return os.fdopen(handle, mode)
    except BaseException:
        with suppress(OSError):
            os.close(handle)
        raise


def read_bytes(folder: Path, name: str, *, most: int = SMALL) -> bytes:
    with open_file(folder, name, most=most) as file:
        return file.read(most + 1)


def read_text(folder: Path, name: str) -> str:
    return read_bytes(folder, name).decode("utf-8", "replace")


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object; an empty one if the file is missing or damaged."""
    try:
        found = json.loads(read_bytes(folder, name))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def require_plain(folder: Path) -> None:
    """Refuse the directory of a run in which something else has the name of a run's file or folder."""
    for name, most in FILES.items():
        found = status_of(folder, name)
        if found is not None and most is not None and found.st_size > most:
            raise _too_large(folder / name, found.st_size, most)
    for name, inner in FOLDERS.items():
        if status_of(folder, name, "a directory") is not None:
            for each in os.listdir(folder / name):
                status_of(folder, f"{name}/{each}", "a directory" if each in inner else "a file")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write the whole file or nothing. Bytes of a folder's name that are not text are escaped."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")  # others may write the same at the same time
    aside.unlink(missing_ok=True)  # of a process that had our number, or a planted link
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(aside, new | CAREFUL, 0o666), "wb") as file:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _parts(folder: Path, name: str) -> tuple[str, ...]:
    parts = PurePath(name).parts
    if not parts or PurePath(name).is_absolute() or ".." in parts:
        raise RunError(f"{name!r} lies outside {folder}.")
    return parts


def _open(folder: Path, parts: tuple[str, ...], flags: int) -> int:
    """A handle of the file. No part of its path is a link, even if one is replaced in between."""
    if not HAS_HANDLES:
        return os.open(folder.joinpath(*parts), flags, 0o666)
    there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for depth, part in enumerate(parts):
            last = depth == len(parts) - 1
            inner = os.open(part, flags if last else os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW, 0o666, dir_fd=there)
            os.close(there)
            there = inner
        return there
    except OSError as error:
        os.close(there)
        path = folder.joinpath(*parts[: depth + 1])
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):  # it was replaced since we looked
            raise RunError(f"{path} is not a file that may be opened: {error.strerror}.") from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _too_large(path: Path, length: int, most: int) -> RunError:
    return RunError(f"{path} has {length:,} bytes, and may have {most:,}. Put a good copy there.")


def _refused(path: Path, mode: int, expected: str) -> RunError:
    return RunError(
        f"{path} is {kind_of(mode)}, and must be {expected}. maskrl does not open it: the directory of a run may come from a "
        f"stranger. Remove it, or put {expected} there."
    )
