"""Consent to run environments: their code runs only if the user asked for it.

A run says how its environment is made, and a run may come from a stranger. So `Gym.make` asks here first. An environment may run if
the user named it in this process (on the command line, from Python, or with --trust), or if this user has trained it on this
machine: a small file in the user's configuration records its path and digest.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from maskrl.files import RunError, write_whole

INHERITED = "MASKRL_CONSENT"  # by the processes that this one starts


class ConsentError(RunError, ValueError):
    """Code without the user's consent; the message says how to give it."""


def key_of(identity: Mapping[str, Any]) -> str:
    """The identity of an environment: 32 hexadecimal digits of the values that decide which code runs."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def allow(identity: Mapping[str, Any]) -> None:
    """Record that the user has named it: it may run in this process, and in those that this one starts."""
    known = _inherited()
    if (key := key_of(identity)) not in known:
        os.environ[INHERITED] = ",".join([*known, key])


def remember(identity: Mapping[str, Any]) -> None:
    """Allow it in later processes of this user on this machine, too. If that cannot be written, later processes ask again."""
    with suppress(OSError):
        folder = directory()
        folder.mkdir(parents=True, exist_ok=True)
        about = {**identity, "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        write_whole(folder / f"{key_of(identity)}.json", json.dumps(about, indent=2))


def is_allowed(identity: Mapping[str, Any]) -> bool:
    key = key_of(identity)
    return key in _inherited() or (directory() / f"{key}.json").is_file()


def directory() -> Path:
    """The folder of these files; $XDG_CONFIG_HOME moves it."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "maskrl" / "trusted"


def _inherited() -> list[str]:
    return [key for key in os.environ.get(INHERITED, "").split(",") if key]
