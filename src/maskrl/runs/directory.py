"""The directory of one run. Everything a reader needs to believe its number is in it.

recipe.json        what was run
versions.json      with what: Python, torch, simulator, renderer, processor, and which maskrl, to the commit
metrics.jsonl      one line per event, each with its clock: frames, decisions, updates, seconds
status.json        running, stopped, done or failed, and why
checkpoints/       the newest state and the one before, tensors and plain values only
replay/            the frames, memory-mapped
lock               held by the process that trains the run
"""

import json
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Literal, get_args

import torch

from maskrl.clock import Clock
from maskrl.envs.base import require_extra
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import Recipe, as_json, difference, digest, digest_of_text
from maskrl.runs import checkpoint
from maskrl.runs.evaluate import EpisodeReturns

try:
    import fcntl
except ImportError:  # Windows, where a run is not locked
    fcntl = None  # type: ignore[assignment]

# random: what uniformly random actions earn. probe: what the encoder sees, see representation.py. The last three are of the
# process and not of the run: where its time went, what a checkpoint cost, and what went otherwise than planned.
Kind = Literal["update", "episode", "evaluation", "random", "probe", "timing", "checkpoint", "note"]
Status = Literal["new", "running", "stopped", "done", "failed"]

BEGINNING = ("versions.json", "recipe.json")  # a run that was killed between the two is a new one
_ASIDE = re.compile(r"(\.\d+)?\.new$")  # of a file that is being written: see `write_whole`


class RunError(Exception):
    """Something about a run directory that its user can put right; the message says how."""


class RunFiles:
    """A run's directory, to be read: its status, log, versions and results. Needs no recipe, so it opens what `Run` refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def status(self) -> Status:
        """Where the run is in its life. A file that cannot be read only shows that there is a run."""
        if not os.path.exists(self.path / "status.json"):
            return "new"
        status, known = self._read("status.json").get("status"), get_args(Status)
        return next((one for one in known if one == status), "running")

    @property
    def why(self) -> str:
        """The error that a failed run ended with."""
        return str(self._read("status.json").get("why", "status.json cannot be read"))

    def versions(self) -> dict[str, Any]:
        """With what the run was begun; nothing if that cannot be read."""
        return self._read("versions.json")

    def _read(self, name: str) -> dict[str, Any]:
        """A JSON object; an empty one if the file cannot be read."""
        try:
            found = json.loads((self.path / name).read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_locked(self) -> bool:
        """Whether some process trains this run, as far as the file system tells."""
        if fcntl is None:
            return False
        try:
            with (self.path / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there is no run yet, or there are no locks
            return False
        return False

    def events(self, *kinds: Kind) -> Iterator[dict[str, Any]]:
        """The logged events in order, of these kinds or of all; a line torn by a crash is passed over."""
        try:
            lines = (self.path / "metrics.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(f"{self.path / 'metrics.jsonl'} cannot be read: {error.strerror}.") from error
        words = [kind.encode() for kind in kinds]
        for line in lines:
            if words and not any(word in line for word in words):
                continue  # unparsed: of a long log, most lines are updates
            event = _event(line)
            if event is not None and (not kinds or event["kind"] in kinds):
                yield event

    @property
    def scores(self) -> list[dict[str, float]]:
        """The evaluations in order: their clock, score, spread over episodes (standard deviation), and number of episodes."""
        return [
            {field.name: event[field.name] for field in fields(Clock)}
            | {"score": event["score"], "spread": EpisodeReturns(tuple(event["returns"])).spread}
            | {"episodes": len(event["returns"])}
            for event in self.events("evaluation")
        ]

    def frame(self) -> Any:
        """The scores as a DataFrame of pandas."""
        require_extra("pandas", "report")
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(
            self.scores, columns=[*(field.name for field in fields(Clock)), "score", "spread", "episodes"]
        )

    @property
    def videos(self) -> list[Path]:
        """Videos in the run's directory and its folders, such as those of `maskrl evaluate --video`."""
        return sorted(path for path in self.path.rglob("*") if path.suffix.lower() in (".mp4", ".gif"))


class Run(RunFiles):
    """One run: its directory, its recipe, its log and its newest checkpoint."""

    def __init__(self, path: Path, recipe: Recipe, text: str | None = None) -> None:
        """`text`: the recipe as it was written, which a later version of maskrl may write otherwise."""
        super().__init__(path)
        self.recipe, self._text = recipe, text

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "Run":
        """The run in this directory: a new one, or the one that is there if it has the same recipe."""
        if (path / "recipe.json").exists():
            run = cls._reopen(path, recipe)
            if run.recipe != recipe:
                changes = "\n".join(f"  {line}" for line in difference(run.recipe, recipe))
                raise RunError(
                    f"{path} holds a run of another recipe. There and here:\n{changes}\n"
                    "Continue it with the overrides it was started with, or choose another --run-dir."
                )
            run.require_same_encoder()
            return run
        if path.exists() and any(_ASIDE.sub("", file.name) not in BEGINNING for file in path.iterdir()):
            raise RunError(f"{path} is not empty and holds no run. Choose another --run-dir, or empty it.")
        begun = {**versions(recipe), **begun_from(recipe)}
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / "versions.json", json.dumps(begun, indent=2))
            write_whole(path / "recipe.json", as_json(recipe))
        except OSError as error:
            raise RunError(f"Cannot write to {path}: {error.strerror}. Choose another --run-dir.") from error
        return cls(path, recipe)

    @classmethod
    def _reopen(cls, path: Path, recipe: Recipe) -> "Run":
        """The run that is there. A recipe with configs of one's own cannot be read, but it can be recognised."""
        with suppress(OSError, ValueError, RecursionError):
            text = (path / "recipe.json").read_text()
            if json.loads(text) == json.loads(as_json(recipe)):
                return cls(path, recipe, text)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """The run that is in this directory."""
        file = path / "recipe.json"
        if not file.exists():
            raise RunError(f"{path} holds no run: there is no recipe.json in it. `maskrl train` makes one.")
        try:
            text = file.read_text()
            return cls(path, from_json(text), text)
        except (ValueError, OSError) as error:
            raise RunError(f"{file} cannot be read by this version of maskrl:\n{error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from training this run. The system frees the lock of a process that dies, however it dies."""
        try:
            file = (self.path / "lock").open("a+")
        except OSError as error:
            raise RunError(f"Cannot write to {self.path}: {error.strerror}. Choose another --run-dir.") from error
        with file:
            try:
                lock(file)
            except BlockingIOError:
                file.seek(0)
                owner = file.read(200).strip() or "another process"
                raise RunError(
                    f"{self.path} is being trained by {owner}. Wait for it, stop it (Ctrl-C there, or kill: it saves "
                    "first), or choose another --run-dir."
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
            file.flush()
            yield

    def require_same_encoder(self) -> None:
        """Refuse to go on, if the file of its first encoder has changed. One that is gone is missed only at the very start."""
        path, begun = encoder_path(self.recipe), self.versions().get("encoder")
        if path is not None and begun is not None and path.is_file() and (now := checkpoint.digest_of(path)) != begun:
            raise RunError(
                f"{self.path} was begun with another encoder: {path} had the digest {begun}, and has {now} now. "
                "Put the file back, or choose another --run-dir."
            )

    def write(self, name: str, text: str) -> Path:
        """A file beside the others, all of it or nothing."""
        write_whole(self.path / name, text)
        return self.path / name

    # ── log ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def log(self, kind: Kind, clock: Clock, values: Mapping[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, **asdict(clock), **values}) + "\n")

    def rewind(self, clock: Clock | None) -> None:
        """Forget what was logged after this time, or everything: it will be done again."""
        if not (self.path / "metrics.jsonl").exists():
            return
        kept = [
            event
            for event in self.events()
            if clock is not None and event["decisions"] <= clock.decisions and event["updates"] <= clock.updates
        ]
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(event) + "\n" for event in kept))

    def set_status(self, status: Status, why: str = "") -> None:
        write_whole(self.path / "status.json", json.dumps({"status": status, "why": why}))

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def digest(self) -> str:
        """By which the run's checkpoints know its recipe."""
        return digest(self.recipe) if self._text is None else digest_of_text(self._text)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def save(self, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint. Those before it stay until it is on the disk, and so is the log up to here."""
        log = self.path / "metrics.jsonl"
        if log.exists():
            with log.open("ab") as file:
                os.fsync(file.fileno())
        return checkpoint.write(self.checkpoints, state, recipe=self.digest)

    def restore(
        self, tell: Callable[[str], None] | None = None, *, set_aside: bool = False, older: bool = False
    ) -> dict[str, Any] | None:
        """The newest state that can be read, or None if none was written. `tell` hears of those that were passed over.

        `set_aside`: give them another name, so that they do not count as one of the two that are kept. For whoever trains.
        `older`: also read an older format, of which the policy is sure to fit.
        """
        damaged = []
        for found in checkpoint.checkpoints(self.checkpoints):
            try:
                content = checkpoint.read(found)
            except (checkpoint.DamagedError, OSError) as error:
                damaged.append(f"{found.path.name} is damaged ({error})")
                if set_aside:
                    found.path.rename(found.path.with_suffix(".damaged"))
                continue
            readable = checkpoint.READABLE if older else (checkpoint.FORMAT,)
            if content.format not in readable:
                by = self.versions()
                maker = f"maskrl {by.get('maskrl', 'of an unknown version')}"
                maker += f" ({by['source']})" if by.get("source") else ""
                raise RunError(
                    f"{found.path} has format {content.format}; this needs format {' or '.join(map(str, readable))}. "
                    f"Use the version that the run was made with: {maker}."
                )
            if content.recipe != self.digest:
                raise RunError(
                    f"{found.path} is of another recipe ({content.recipe}, here {self.digest}). "
                    "Take it out of this directory; the checkpoint before it will be used."
                )
            if damaged and tell is not None:
                tell(f"{' and '.join(damaged)}; taking the checkpoint before, {found.path.name}.")
            return content.state
        if damaged:
            raise RunError(
                f"{self.checkpoints} has no checkpoint that can be read: {', '.join(damaged)}. Put a good copy there, or "
                "remove the run's directory and start again."
            )
        self._require_young()
        return None

    def _require_young(self) -> None:
        """Refuse to begin again, and to write over, a run that must have had a checkpoint."""
        reached = max((event["frames"] for event in self.events()), default=0)
        if reached > self.recipe.checkpoint_every:
            raise RunError(
                f"{self.path} has reached {reached:,} frames, but its checkpoints are gone. Put them back into "
                f"{self.checkpoints.name}/, or remove the run's directory to start again."
            )


def lock(file: IO[str]) -> None:
    """Lock a file for this process, or BlockingIOError. Waits for `is_locked`, which holds the lock for a moment."""
    for pause in () if fcntl is None else (0.02, 0.1, 0.3, None):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pause is None:
                raise
            time.sleep(pause)
        except OSError:
            break  # a file system without locks; `maskrl doctor` tells
        else:
            break


def _event(line: bytes) -> dict[str, Any] | None:
    """A line of the log, or None if no run has written it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("kind") not in get_args(Kind):
        return None
    numbers = [event.get(field.name) for field in fields(Clock)]
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


def default_path(recipe: Recipe) -> Path:
    """Where a run lives if nobody says otherwise."""
    return Path("runs") / recipe.name / recipe.method / f"seed-{recipe.seed}-{digest(recipe)}"


def encoder_path(recipe: Recipe) -> Path | None:
    """The file that the recipe's encoder begins with."""
    return None if recipe.encoder_from is None else Path(recipe.encoder_from.replace("{seed}", str(recipe.seed)))


def begun_from(recipe: Recipe) -> dict[str, str]:
    """The digest of that file, by which it is known again."""
    path = encoder_path(recipe)
    if path is None:
        return {}
    if not path.is_file():
        raise RunError(f"There is no file {path}. `maskrl pretrain` makes one.")
    return {"encoder": checkpoint.digest_of(path)}


def versions(recipe: Recipe) -> dict[str, str | None]:
    """What may change a result without changing the recipe."""

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    packages = ("maskrl", "torch", "numpy", "gymnasium", "mujoco", "dm_control", "ale-py")
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "source": source(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "renderer": recipe.env.renderer(),
    }


@cache  # later commits do not change the code that this process runs
def source() -> str | None:
    """Which maskrl this is: the version and origin of an installed wheel, or the commit of a checkout; None if unknown."""
    package = Path(__file__).resolve().parents[1]
    try:
        wheel = metadata.distribution("maskrl")
    except metadata.PackageNotFoundError:
        wheel = None
    # The record of an editable installation is not beside the package.
    if wheel is not None and Path(str(wheel.locate_file("maskrl"))).resolve() == package:
        return " ".join([wheel.version, *_origin(wheel.read_text("direct_url.json") or "{}")])
    command = ["git", "-C", str(package), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=2).stdout.strip() or None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _origin(direct_url: str) -> list[str]:
    """The commit or the digest of an archive in `direct_url.json`, which pip writes for what comes from no index."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        url = json.loads(direct_url)
        archive = url.get("archive_info", {})
        digests = [f"{kind}={digest}" for kind, digest in archive.get("hashes", {}).items()]
        return [
            str(found) for found in (url.get("vcs_info", {}).get("commit_id"), archive.get("hash"), *digests) if found
        ][:1]
    return []


def write_whole(path: Path, content: str | bytes) -> None:
    """All of it or nothing. What is no text, in the name of a folder, is written as its number."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")  # others may write the same at the same time
    try:
        with aside.open("wb") as file:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
