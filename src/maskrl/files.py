"""Open the files of a run safely, because its directory may come from an untrusted source. Needs only the standard library.

A file must be regular, within its maximum size if there is one, and no part of its path below the directory may be a symbolic link.
A FIFO would block its reader, a device could fill the memory, and a link could lead out of the directory.
"""

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import IO, Any, Literal

SMALL = 1 << 24  # maximum bytes of a JSON file, such as recipe.json
ENCODER = 1 << 32  # maximum bytes of an encoder: hundreds of times the largest of ours
LOG = 1 << 30  # maximum bytes of metrics.jsonl: thousands of times the log of the paper's longest run

# The files of a run or a pre-training with their maximum bytes, and its folders with their allowed subfolders. Anything else with
# one of these names is refused.
FILES: Mapping[str, int | None] = {
    **dict.fromkeys(("recipe.json", "versions.json", "status.json", "lock", "probe.json", "pretrain.json"), SMALL),
    **{"metrics.jsonl": LOG, "encoder.safetensors": ENCODER, "video.mp4": None, "video.gif": None},
}
FOLDERS: Mapping[str, tuple[str, ...]] = {"checkpoints": ("unfinished",), "replay": (), "tensorboard": ()}

Mode = Literal["rb", "ab", "r+b", "a+b"]
FLAGS = {
    "rb": os.O_RDONLY,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "r+b": os.O_RDWR,
    "a+b": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}
# Windows lacks these. There a path is checked before it is opened, which is enough unless it changes in between.
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
CAREFUL = NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
HAS_HANDLES = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd  # of directories


class RunError(Exception):
    """A problem with a run directory that the user can fix; the message says how."""


class EnvironmentFailedError(Exception):
    """The environment raised an error or returned invalid values: a run (after a second try) or a command cannot continue.

    It is here, and not among the environments, because the command line knows it without loading them.
    """


def kind_of(mode: int) -> str:
    """The kind of a file in words, from its mode."""
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
    """The status of a file, or of `a directory`, below a folder; None if missing. Raises RunError for other kinds and links."""
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
    """Open a regular file below a folder. `most`: its maximum bytes. For writing, it must not be a hard link.

    Raises OSError like `open`, and RunError for other files.
    """
    status_of(folder, name)  # check first: opening a device may have side effects
    handle = _open(folder, _parts(folder, name), FLAGS[mode] | CAREFUL)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):  # replaced in between
            raise _refused(folder / name, found.st_mode, "a file")
        if mode != "rb" and found.st_nlink > 1:
            raise RunError(
                f"{folder / name} is a hard link: writing to it would change {found.st_nlink} files. Replace it by a copy."
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
    """Read a JSON object; empty if the file is missing or damaged."""
    try:
        found = json.loads(read_bytes(folder, name))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def listed(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a list of a JSON object; empty if there is no such list."""
    each = found.get(name)
    return [one for one in each if isinstance(one, dict)] if isinstance(each, list) else []


def require_plain(folder: Path) -> None:
    """Raise RunError if something else has the name of a run's file or folder."""
    for name, most in FILES.items():
        found = status_of(folder, name)
        if found is not None and most is not None and found.st_size > most:
            raise _too_large(folder / name, found.st_size, most)
    for name, inner in FOLDERS.items():
        if status_of(folder, name, "a directory") is not None:
            for each in os.listdir(folder / name):
                status_of(folder, f"{name}/{each}", "a directory" if each in inner else "a file")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write the whole file or nothing. Escapes bytes that are not text, such as in folder names."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")  # other processes may write the same file
    aside.unlink(missing_ok=True)  # left by a process with the same id, or a planted link
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
    """A handle of the file, opened without following links, even if the path changes in between."""
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
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):  # replaced after the check
            raise RunError(f"{path} is not a file that may be opened: {error.strerror}.") from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _too_large(path: Path, length: int, most: int) -> RunError:
    return RunError(f"{path} has {length:,} bytes; the maximum is {most:,}. Put a good copy there.")


def _refused(path: Path, mode: int, expected: str) -> RunError:
    return RunError(
        f"{path} is {kind_of(mode)}, but must be {expected}. maskrl does not open it, because a run's directory may come from an "
        f"untrusted source. Remove it, or put {expected} there."
    )
