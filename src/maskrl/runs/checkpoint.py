"""A checkpoint is one safetensors file: tensors, and plain values as JSON. Reading it cannot run code.

It is written to a temporary file and renamed once it is on the disk. Its name ends in the digest of its bytes, so a torn or changed
file no longer matches its name. The previous one is kept, in case the newest is damaged later.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._pytree import tree_leaves

from maskrl.files import open_file, status_of

# Earlier formats. 1: one file of torch's own; 2: the encoder's maps flattened in another order; 3: more values per frame of the
# replay; 4: other names for objectives, agents and generators. Policies of format 4 are unchanged, so they can be evaluated.
FORMAT = 5
READABLE = (4, FORMAT)
KEPT = 2  # the newest and the previous one
HEADER = 100_000_000  # maximum bytes, also the limit of the safetensors library

_NAME = re.compile(r"(\d{6,})-([0-9a-f]{16})\.safetensors")


class DamagedError(Exception):
    """The file differs from what was written; the message says how."""


class Checkpoint(NamedTuple):
    """A checkpoint file, parsed from its name. Numbers count a run's checkpoints; the newest has the highest."""

    number: int
    digest: str
    path: Path


def checkpoints(directory: Path) -> list[Checkpoint]:
    """The checkpoints in a folder, newest first, without files that are half written or set aside."""
    there = status_of(directory.parent, directory.name, "a directory") is not None
    names = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()] if there else []
    return sorted((Checkpoint(int(name[1]), name[2], path) for name, path in names if name), reverse=True)


def write(directory: Path, state: Mapping[str, Any], *, recipe: str) -> Path:
    """Write the next checkpoint, then remove those that are too old. `recipe`: digest of the run's recipe."""
    before = checkpoints(directory)
    aside = directory / "unfinished" / "next.safetensors"
    shutil.rmtree(aside.parent, ignore_errors=True)  # left by a crash
    aside.parent.mkdir(parents=True)
    packer = _Packer()
    plain = json.dumps(packer.pack(state))
    aside.touch()
    mode = aside.stat().st_mode  # the library makes files readable for their owner only
    try:
        save_file(packer.tensors, aside, metadata={"format": str(FORMAT), "recipe": recipe, "state": plain})
    except SafetensorError as error:
        raise _as_os_error(error, aside) from error
    aside.chmod(mode)
    with aside.open("rb+") as file:
        os.fsync(file.fileno())
    number = before[0].number + 1 if before else 1
    path = directory / f"{number:06}-{digest_of(aside)}.safetensors"
    aside.rename(path)
    aside.parent.rmdir()
    sync_directory(directory)
    for old in before[KEPT - 1 :]:
        old.path.unlink(missing_ok=True)
    return path


class Content(NamedTuple):
    """The content of a checkpoint."""

    format: int
    recipe: str  # digest of its recipe
    state: dict[str, Any]  # empty if the format cannot be read


def read(checkpoint: Checkpoint) -> Content:
    """Read a checkpoint to the CPU; raise `DamagedError` if it is not as it was written."""
    _require_length(checkpoint.path)
    if (found := digest_of(checkpoint.path)) != checkpoint.digest:
        raise DamagedError(f"its bytes have the digest {found}, its name says {checkpoint.digest}")
    try:
        with safe_open(checkpoint.path, "pt") as file:
            metadata = file.metadata() or {}
            version, recipe = int(metadata["format"]), metadata["recipe"]
            if version not in READABLE:
                return Content(version, recipe, {})
            state = _unpack(json.loads(metadata["state"]), file)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:  # maskrl did not write this
        raise DamagedError(f"it is not a checkpoint: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise DamagedError(f"it is not a checkpoint: its state is {type(state).__name__}")
    return Content(version, recipe, state)


def _require_length(path: Path) -> None:
    """Raise DamagedError if the file's length does not match its header, before reading all of it: it may have terabytes."""
    with open_file(path.parent, path.name) as file:
        length, header = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
        if header > min(length, HEADER):
            raise DamagedError(f"its header has {header:,} bytes, of {length:,} in all")
        try:
            entries = json.loads(file.read(header)).items()
            ends = [int(entry["data_offsets"][1]) for name, entry in entries if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise DamagedError(f"it is not a checkpoint: {type(error).__name__}: {error}") from error
    if length != (expected := 8 + header + max(ends, default=0)):
        raise DamagedError(f"it has {length:,} bytes, and its header says {expected:,}")


def nbytes(state: Mapping[str, Any]) -> int:
    """The bytes of all tensors in a state, which may be on the meta device."""
    return sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, Tensor))


def digest_of(path: Path, *, most: int | None = None) -> str:
    """64 bits of SHA-256, enough to detect accidents. Forged files are harmless: no content can run code.

    `most`: the maximum bytes of the file.
    """
    digest = hashlib.sha256()
    with open_file(path.parent, path.name, most=most) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()[:16]


def sync_directory(directory: Path) -> None:
    """Make renames in the directory survive a power cut."""
    if os.name != "posix":
        return  # Windows cannot open a directory
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _as_os_error(error: SafetensorError, path: Path) -> OSError:
    """Convert the library's error, which reports a full disk only in its text."""
    words = str(error)
    full = re.search(r"os error (\d+)", words)
    number = int(full[1]) if full else errno.ENOSPC if shutil.disk_usage(path.parent).free < 1 << 20 else errno.EIO
    return OSError(number, os.strerror(number), str(path))


# ── Nested values ⇄ tensors by name, and JSON ─────────────────────────────────────────────────────────────────────────
# A value that JSON lacks is stored as an object with one entry, named after its type; so are dicts.


class _Packer:
    """Collects the tensors of a nested value. A shared tensor, such as tied weights, is stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[object, str] = {}

    def pack(self, value: Any, path: str = "state") -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case np.ndarray():
                return self.pack(torch.from_numpy(value), path)
            case Tensor():
                # In memory order, which is restored: fused optimisers need moments in the same layout as the weights.
                order = sorted(range(value.dim()), key=value.stride, reverse=True)
                laid_out = value if value.is_contiguous() else value.permute(order)
                name = {"tensor": self._name(laid_out, path)}
                return name if laid_out is value else {**name, "order": order}
            case Mapping():
                # As pairs, because the keys of an optimiser's state are numbers.
                return {"dict": [[key, self.pack(inner, f"{path}/{key}")] for key, inner in value.items()]}
            case list() | tuple():
                packed = [self.pack(inner, f"{path}/{place}") for place, inner in enumerate(value)]
                return packed if isinstance(value, list) else {"tuple": packed}
        raise TypeError(f"{path} is a {type(value).__name__}: a checkpoint holds only tensors and plain values.")

    def _name(self, tensor: Tensor, path: str) -> str:
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if memory not in self._names:
            self._names[memory] = path
            self.tensors[path] = tensor.detach().cpu().contiguous()
        return self._names[memory]


def _unpack(value: Any, file: Any) -> Any:
    match value:
        case {"tensor": str(name), **rest} if not rest:
            return file.get_tensor(name)
        case {"tensor": str(name), "order": list(order), **rest} if not rest:
            return file.get_tensor(name).permute([order.index(place) for place in range(len(order))])
        case {"dict": list(pairs), **rest} if not rest:
            return {key: _unpack(inner, file) for key, inner in pairs}
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_unpack(item, file) for item in items)
        case list():
            return [_unpack(item, file) for item in value]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"{str(value)[:80]} is not part of a state")
