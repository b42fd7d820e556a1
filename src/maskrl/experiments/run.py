"""The directory of one run. Everything a reader needs to believe its number is in it.

recipe.json        what was run
versions.json      with what: Python, torch, simulator, renderer, processor
metrics.jsonl      one line per event, each with its clock: frames, decisions, updates, seconds
status.json        running, done or failed, and why
checkpoint.pt      the newest state, tensors and plain values only
replay/            the frames, memory-mapped
"""

import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from maskrl.envs.dmcontrol import DMControl
from maskrl.envs.gl import choose_gl
from maskrl.experiments.recipe import Recipe, as_json, difference, from_json

Kind = Literal["update", "episode", "evaluation", "random"]  # random: what uniformly random actions earn
Status = Literal["new", "running", "done", "failed"]


class RunError(Exception):
    """Something about a run directory that its user can put right; the message says how."""


@dataclass(frozen=True)
class Clock:
    """Where a run is. A decision is one action of the agent, a frame one tick of the simulator, an update one round of learning."""

    frames: int
    decisions: int
    updates: int
    seconds: float  # of training, over all sittings


class Run:
    """One run: its directory, its recipe, its log and its newest checkpoint."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path, self.recipe = path, recipe

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "Run":
        """The run in this directory: a new one, or the one that is there if it has the same recipe."""
        if (path / "recipe.json").exists():
            run = cls.open(path)
            if run.recipe != recipe:
                changes = "\n".join(f"  {line}" for line in difference(run.recipe, recipe))
                raise RunError(
                    f"{path} holds a run of another recipe. There and here:\n{changes}\n"
                    "Continue it with the overrides it was started with, or choose another --run-dir."
                )
            return run
        if path.exists() and any(path.iterdir()):
            raise RunError(f"{path} is not empty and holds no run. Choose another --run-dir, or empty it.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            _write(path / "versions.json", json.dumps(versions(recipe), indent=2))
            _write(path / "recipe.json", as_json(recipe))
        except OSError as error:
            raise RunError(f"Cannot write to {path}: {error.strerror}. Choose another --run-dir.") from error
        return cls(path, recipe)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """The run that is in this directory."""
        if not (path / "recipe.json").exists():
            raise RunError(f"{path} holds no run: there is no recipe.json in it. `maskrl train` makes one.")
        try:
            return cls(path, from_json((path / "recipe.json").read_text()))
        except ValueError as error:
            raise RunError(f"{path / 'recipe.json'} cannot be read by this version of maskrl:\n{error}") from error

    def versions(self) -> dict[str, str | None]:
        """With what the run was begun."""
        found: dict[str, str | None] = json.loads((self.path / "versions.json").read_text())
        return found

    # ── log ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def log(self, kind: Kind, clock: Clock, values: Mapping[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, **asdict(clock), **values}) + "\n")

    def events(self, kind: Kind | None = None) -> Iterator[dict[str, Any]]:
        """The logged events in order; a line torn by a crash is passed over."""
        file = self.path / "metrics.jsonl"
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if kind is None or event["kind"] == kind:
                yield event

    def rewind(self, clock: Clock | None) -> None:
        """Forget what was logged after this time, or everything: it will be done again."""
        if not (self.path / "metrics.jsonl").exists():
            return
        kept = [
            event
            for event in self.events()
            if clock is not None and event["decisions"] <= clock.decisions and event["updates"] <= clock.updates
        ]
        _write(self.path / "metrics.jsonl", "".join(json.dumps(event) + "\n" for event in kept))

    # ── status ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def status(self) -> Status:
        file = self.path / "status.json"
        status: Status = json.loads(file.read_text())["status"] if file.exists() else "new"
        return status

    def set_status(self, status: Status, why: str = "") -> None:
        _write(self.path / "status.json", json.dumps({"status": status, "why": why}))

    # ── checkpoint ────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, state: Mapping[str, Any]) -> None:
        """Atomic: the old checkpoint stays until the new one is on the disk."""
        aside = self.path / "checkpoint.pt.new"
        with aside.open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path / "checkpoint.pt")

    def restore(self) -> dict[str, Any] | None:
        """The newest checkpoint, or None. Loading runs no code: tensors and plain values only."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:
            raise RunError(
                f"{file} is damaged ({error}). Remove it to start this run again from the beginning."
            ) from error
        return state


def versions(recipe: Recipe) -> dict[str, str | None]:
    """What may change a result without changing the recipe."""

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def renderer() -> str | None:
        try:
            return " ".join(choose_gl()) if isinstance(recipe.env, DMControl) else None
        except RuntimeError:  # nothing draws here, which is for the environment to say
            return None

    packages = ("maskrl", "torch", "numpy", "gymnasium", "mujoco", "dm_control", "ale-py")
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "renderer": renderer(),
    }


def _write(file: Path, text: str) -> None:
    aside = file.with_name(file.name + ".new")
    aside.write_text(text)
    aside.replace(file)
