"""The lock of a run: one process trains it at a time.

The process locks two inodes: the run's directory, so that removing a file does not free the run, and the file `lock` in it, which
names the process and is enough where directories cannot be locked (NFS). The system frees both when the process ends, even by a
crash. Before every save the process checks that both are still the ones it has locked.
"""

import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from maskrl.files import RunError, open_file, read_text

try:
    import fcntl
except ImportError:  # Windows, where a run is not locked
    fcntl = None  # type: ignore[assignment]


def claim(handle: int | IO[bytes]) -> None:
    """Lock a file for this process, or raise BlockingIOError. Waits while `is_claimed` briefly holds the lock."""
    for pause in () if fcntl is None else (0.02, 0.1, 0.3, None):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if pause is None:
                raise
            time.sleep(pause)
        except OSError:
            return  # a file system without locks; `maskrl doctor` reports it


def is_claimed(handle: int | IO[bytes]) -> bool:
    """Whether some process has locked the file; False if the file system has no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError as error:  # another error: there are no locks
        return isinstance(error, BlockingIOError)
    return False


def is_trained(folder: Path) -> bool:
    """Whether some process trains the run in this directory."""
    with suppress(OSError), open_file(folder, "lock") as file:
        if is_claimed(file):
            return True
    with suppress(OSError):
        handle = _open_directory(folder)
        if handle is not None:
            try:
                return is_claimed(handle)
            finally:
                os.close(handle)
    return False


class Lock:
    """A context that keeps other processes from training a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._directory: int | None = None
        self._file: IO[bytes] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Lock":
        with ExitStack() as stack:
            self._directory = _open_directory(self._folder)
            if self._directory is not None:
                stack.callback(os.close, self._directory)
            try:
                if self._directory is not None:
                    claim(self._directory)
                self._file = self._claimed_file()
            except BlockingIOError:
                raise RunError(
                    f"{self._folder} is being trained by {self._owner()}. Wait for it, stop it (Ctrl-C there, or kill: it saves "
                    "first), or choose another --run-dir."
                ) from None
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._stack.close()

    def check(self) -> str | None:
        """Check that this process still holds the lock. Returns a sentence if the lock file had to be created again.

        Raises RunError if another process has taken over the run, or if its directory was replaced.
        """
        assert self._file is not None
        ours = None if self._directory is None else os.fstat(self._directory)
        if ours is not None and not _is_same(self._folder, ours):
            raise RunError(
                f"{self._folder} was removed or replaced while this process trained the run in it. It stops without saving. "
                "Put the directory back, and run the same command."
            )
        if _is_same(self._folder / "lock", os.fstat(self._file.fileno())):
            return None
        try:
            new = self._claimed_file()
        except BlockingIOError:
            raise RunError(
                f"The lock of {self._folder} was removed or replaced, and {self._owner()} trains the run now. This process stops "
                "without saving; the other one saves the run."
            ) from None
        self._file.close()
        self._file = new
        return "Something removed or replaced the run's file `lock`. It is back, and no other process trains this run."

    def _claimed_file(self) -> IO[bytes]:
        """The file `lock`, locked, with this process's name in it."""
        file = open_file(self._folder, "lock", "a+b")
        try:
            claim(file)
            file.truncate(0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
            file.flush()
        except BaseException:
            file.close()
            raise
        return file

    def _owner(self) -> str:
        with suppress(OSError):
            return read_text(self._folder, "lock")[:200].strip() or "another process"
        return "another process"


def _open_directory(folder: Path) -> int | None:
    """A handle of a directory; None on Windows, which cannot open one."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if hasattr(os, "O_DIRECTORY") else None


def _is_same(path: Path, known: os.stat_result) -> bool:
    """Whether the path still points to the same inode."""
    try:
        return os.path.samestat(os.stat(path), known)
    except OSError:
        return False
