"""Consent to run environments: their code runs only if the user asked for it.

A run's directory names its environment, and may come from an untrusted source. So `Gym.make` checks here first. An environment may
run if the user named it in this process (on the command line, from Python, or with --trust), or if this user has trained it on
this machine: a small file in the user's configuration records its path and digest.
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

INHERITED = "MASKRL_CONSENT"  # by child processes


class ConsentError(RunError, ValueError):
    """The user has not consented to run this code; the message says how to."""


def key_of(identity: Mapping[str, Any]) -> str:
    """A key for an environment: 32 hexadecimal digits from the values that determine its code."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def allow(identity: Mapping[str, Any]) -> None:
    """Record that the user has named the environment: it may run in this process and its children."""
    known = _inherited()
    if (key := key_of(identity)) not in known:
        os.environ[INHERITED] = ",".join([*known, key])


def remember(identity: Mapping[str, Any]) -> None:
    """Also allow the environment in later processes of this user. If the file cannot be written, later processes ask again."""
    with suppress(OSError):
        folder = directory()
        folder.mkdir(parents=True, exist_ok=True)
        about = {**identity, "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        write_whole(folder / f"{key_of(identity)}.json", json.dumps(about, indent=2))


def is_allowed(identity: Mapping[str, Any]) -> bool:
    key = key_of(identity)
    return key in _inherited() or (directory() / f"{key}.json").is_file()


def directory() -> Path:
    """The folder of these files, under $XDG_CONFIG_HOME if it is set."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "maskrl" / "trusted"


def _inherited() -> list[str]:
    return [key for key in os.environ.get(INHERITED, "").split(",") if key]
