"""The directory of one run. Everything a reader needs to believe its number is in it.

recipe.json        what was run
versions.json      with what: Python, torch, its threads, simulator, renderer, processor, and which maskrl, to the commit
metrics.jsonl      one line per event, each with its clock: frames, decisions, updates, seconds
status.json        running, stopped, done or failed, and why
checkpoints/       the newest state and the one before, tensors and plain values only
replay/            the frames, memory-mapped
lock               held by the process that trains the run
"""

import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import cache, cached_property
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
from maskrl.threads import usual_threads

try:
    import fcntl
except ImportError:  # Windows, where a run is not locked
    fcntl = None  # type: ignore[assignment]

# random: the score of random actions. probe: measures of the encoder, see representation/latents.py. The last three are about
# the process, not the run: where its time went, the cost of a checkpoint, and what did not go as planned.
Kind = Literal["update", "episode", "evaluation", "random", "probe", "timing", "checkpoint", "note"]
Status = Literal["new", "running", "stopped", "done", "failed"]
CLOCK = tuple(field.name for field in fields(Clock))  # that every event has


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
        status: Status = read_object(self.path / "status.json").get("status", "running")
        return status if status in get_args(Status) else "running"

    @property
    def why(self) -> str:
        """The error that a failed run ended with."""
        return str(read_object(self.path / "status.json").get("why", "status.json cannot be read"))

    def versions(self) -> dict[str, Any]:
        """The versions that the run was started with; empty if they cannot be read."""
        return read_object(self.path / "versions.json")

    @property
    def is_locked(self) -> bool:
        """Whether some process trains this run, as far as the file system tells."""
        if fcntl is None:
            return False
        try:
            with (self.path / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:  # of another kind: there is no run yet, or there are no locks
            return isinstance(error, BlockingIOError)
        return False

    def events(self, *kinds: Kind) -> Iterator[dict[str, Any]]:
        """The logged events in order, of these kinds or of all; a line torn by a crash is passed over."""
        try:
            lines = (self.path / "metrics.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(f"{self.path / 'metrics.jsonl'} cannot be read: {error.strerror}.") from error
        words = [kind.encode() for kind in kinds or get_args(Kind)]
        for line in lines:
            # Most lines of a long log are updates: those that are not asked for are not parsed.
            event = _event(line) if any(word in line for word in words) else None
            if event is not None and (not kinds or event["kind"] in kinds):
                yield event

    @property
    def scores(self) -> list[dict[str, float]]:
        """The evaluations in order: their clock, score, spread over episodes (standard deviation), and number of episodes."""
        return [
            {name: event[name] for name in (*CLOCK, "score")}
            | {"spread": EpisodeReturns(tuple(event["returns"])).spread, "episodes": len(event["returns"])}
            for event in self.events("evaluation")
        ]

    def frame(self) -> Any:
        """The scores as a DataFrame of pandas."""
        require_extra("pandas", "report")
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.scores, columns=[*CLOCK, "score", "spread", "episodes"])

    @property
    def videos(self) -> list[Path]:
        """Videos in the run's directory and its folders, such as those of `maskrl evaluate --video`."""
        return sorted(path for path in self.path.rglob("*") if path.suffix.lower() in (".mp4", ".gif"))


class Run(RunFiles):
    """One run: its directory, its recipe, its log and its newest checkpoint."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        super().__init__(path)
        self.recipe = recipe

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "Run":
        """The run in this directory: a new one, or the one that is there if it has the same recipe."""
        if (path / "recipe.json").exists():
            # A recipe with a config of one's own cannot be read back, but it can be recognised.
            known = read_object(path / "recipe.json") == json.loads(as_json(recipe))
            run = cls(path, recipe) if known else cls.open(path)
            if run.recipe != recipe:
                changes = "\n".join(f"  {line}" for line in difference(run.recipe, recipe))
                raise RunError(
                    f"{path} holds a run of another recipe, made by {run.maker}. There and here:\n{changes}\n"
                    "Continue it with the overrides it was started with, or choose another --run-dir. If you gave none, its "
                    "version had other defaults: give these values."
                )
            run.require_same_encoder()
            return run
        # A run that was killed while these two were written has not begun: they are written again.
        first = ("versions.json", "recipe.json")
        if path.exists() and not all(file.name.startswith(first) for file in path.iterdir()):
            raise RunError(f"{path} is not empty and holds no run. Choose another --run-dir, or empty it.")
        run, threads = cls(path, recipe), recipe.threads or usual_threads()
        begun = {**versions(recipe), **begun_from(recipe), "threads": threads}
        with run._writing():
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / "versions.json", json.dumps(begun, indent=2))
            write_whole(path / "recipe.json", as_json(recipe))
        return run

    @classmethod
    def open(cls, path: Path) -> "Run":
        """The run that is in this directory."""
        file = path / "recipe.json"
        if not file.exists():
            raise RunError(f"{path} holds no run: there is no recipe.json in it. `maskrl train` makes one.")
        try:
            return cls(path, from_json(file.read_text()))
        except (ValueError, OSError) as error:
            raise RunError(f"{file} cannot be read by this version of maskrl:\n{error}") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"Cannot write to {self.path}: {error.strerror}. Choose another --run-dir.") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from training this run. The system frees the lock of a process that dies, however it dies."""
        with self._writing():
            file = (self.path / "lock").open("a+")
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
        """Refuse to go on if the file of its first encoder has changed. A missing file matters only at the very start."""
        path, begun = encoder_path(self.recipe), self.versions().get("encoder")
        if path is not None and begun is not None and path.is_file() and (now := checkpoint.digest_of(path)) != begun:
            raise RunError(
                f"{self.path} was begun with another encoder: {path} had the digest {begun}, and has {now} now. "
                "Put the file back, or choose another --run-dir."
            )

    @property
    def threads(self) -> int:
        """Of torch. Settled when the run is made, as sums round by how they are shared out: a continued run keeps its results."""
        begun = self.versions().get("threads")
        return self.recipe.threads or (begun if type(begun) is int and 0 < begun <= 1024 else usual_threads())

    # ── log ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def log(self, kind: Kind, clock: Clock, values: Mapping[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, **asdict(clock), **values}) + "\n")

    def rewind(self, clock: Clock | None) -> None:
        """Forget what was logged after this time, or everything: it will be done again."""
        if (self.path / "metrics.jsonl").exists():
            decisions, updates = (-1, -1) if clock is None else (clock.decisions, clock.updates)
            kept = [one for one in self.events() if one["decisions"] <= decisions and one["updates"] <= updates]
            write_whole(self.path / "metrics.jsonl", "".join(json.dumps(event) + "\n" for event in kept))

    def set_status(self, status: Status, why: str = "") -> None:
        write_whole(self.path / "status.json", json.dumps({"status": status, "why": why}))

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def digest(self) -> str:
        """By which checkpoints know their recipe: of its text, as another version of maskrl may have written it."""
        file = self.path / "recipe.json"
        return digest_of_text(file.read_text()) if file.exists() else digest(self.recipe)

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
        """The newest state that can be read, or None if none was written. `tell` hears of damaged ones that were skipped.

        `set_aside` renames damaged ones, so that they do not count as one of the two that are kept: for whoever trains.
        `older` also reads older formats whose policies can still be used.
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
            self._require_readable(content, found.path, checkpoint.READABLE if older else (checkpoint.FORMAT,))
            if damaged and tell is not None:
                tell(f"{' and '.join(damaged)}; taking the checkpoint before, {found.path.name}.")
            return content.state
        if damaged:
            raise RunError(
                f"{self.checkpoints} has no checkpoint that can be read: {', '.join(damaged)}. Put a good copy there, or "
                "remove the run's directory and start again."
            )
        reached = max((event["frames"] for event in self.events()), default=0)
        if reached > self.recipe.checkpoint_every:  # it must have had one: do not write over it
            raise RunError(
                f"{self.path} has reached {reached:,} frames, but its checkpoints are gone. Put them back into "
                f"{self.checkpoints.name}/, or remove the run's directory to start again."
            )
        return None

    def newest(self, tell: Callable[[str], None], *, older: bool = False) -> dict[str, Any]:
        """The newest state that can be read, to look at it; an error if there is none."""
        state = self.restore(tell, older=older)
        if state is None:
            raise self.no_checkpoint()
        return state

    @property
    def maker(self) -> str:
        """The version of maskrl that made the run."""
        by = self.versions()
        source = f" ({by['source']})" if by.get("source") else ""
        return f"maskrl {by.get('maskrl', 'of an unknown version')}{source}"

    def no_checkpoint(self) -> RunError:
        again = "Continue it with the `maskrl train` command, or the call of maskrl.train, that started it."
        return RunError(f"{self.path} has no checkpoint yet. {again}")

    def _require_readable(self, content: checkpoint.Content, path: Path, formats: tuple[int, ...]) -> None:
        if content.format not in formats:
            raise RunError(
                f"{path} has format {content.format}; this needs format {' or '.join(map(str, formats))}. Use the version that "
                f"the run was made with: {self.maker}."
            )
        if content.recipe != self.digest:
            raise RunError(
                f"{path} is of another recipe ({content.recipe}, here {self.digest}). Take it out of this directory; the "
                "checkpoint before it will be used."
            )


def lock(file: IO[str]) -> None:
    """Lock a file for this process, or raise BlockingIOError. Waits for `is_locked`, which holds the lock for a moment."""
    for pause in () if fcntl is None else (0.02, 0.1, 0.3, None):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if pause is None:
                raise
            time.sleep(pause)
        except OSError:
            return  # a file system without locks; `maskrl doctor` tells


def _event(line: bytes) -> dict[str, Any] | None:
    """A line of the log, or None if no run has written it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("kind") not in get_args(Kind):
        return None
    numbers = [event.get(name) for name in CLOCK]
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


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one if the file cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def title(recipe: Recipe) -> str:
    return f"{recipe.name} · {recipe.method} · {recipe.profile} profile · seed {recipe.seed}"


def default_path(recipe: Recipe) -> Path:
    """Where a run lives if nobody says otherwise."""
    return Path("runs") / recipe.name / recipe.method / f"seed-{recipe.seed}-{digest(recipe)}"


def encoder_path(recipe: Recipe) -> Path | None:
    """The file that the recipe's encoder begins with."""
    return None if recipe.encoder_from is None else Path(recipe.encoder_from.replace("{seed}", str(recipe.seed)))


def begun_from(recipe: Recipe) -> dict[str, str]:
    """The digest of that file, to recognise it later."""
    path = encoder_path(recipe)
    if path is None:
        return {}
    if not path.is_file():
        raise RunError(f"There is no file {path}. `maskrl pretrain` makes one.")
    return {"encoder": checkpoint.digest_of(path)}


PACKAGES = ("maskrl", "torch", "numpy", "gymnasium", "mujoco", "dm_control", "ale-py")


def versions(recipe: Recipe) -> dict[str, str | None]:
    """What may change a result without changing the recipe. None: not installed, or unknown."""
    installed = {package: [one.version for one in metadata.distributions(name=package)][:1] for package in PACKAGES}
    return {
        "python": platform.python_version(),
        **{package: found[0] if found else None for package, found in installed.items()},
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
    for wheel in metadata.distributions(name="maskrl"):
        # The record of an editable installation is not beside the package.
        if Path(str(wheel.locate_file("maskrl"))).resolve() == package:
            return f"{wheel.version} {_origin(wheel)}".rstrip()
    command = ["git", "-C", str(package), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=2).stdout.strip() or None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _origin(wheel: metadata.Distribution) -> str:
    """The commit, or the digest of the archive, that pip notes for what comes from no index."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        url = json.loads(wheel.read_text("direct_url.json") or "{}")
        digests = [f"{kind}={digest}" for kind, digest in url.get("archive_info", {}).get("hashes", {}).items()]
        return str(url.get("vcs_info", {}).get("commit_id") or next(iter(digests), ""))
    return ""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write the whole file or nothing. Bytes of a folder's name that are not text are escaped."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")  # others may write the same at the same time
    try:
        with aside.open("wb") as file:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
