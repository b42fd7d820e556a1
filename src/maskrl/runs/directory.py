"""The directory of one run, with everything needed to check its score.

recipe.json        the recipe
versions.json      Python, torch, its threads, simulator, renderer, processor, and maskrl's version and commit
metrics.jsonl      one line per event, each with its clock: frames, decisions, updates, seconds
status.json        running, stopped, done or failed, and why
checkpoints/       the newest state and the one before, tensors and plain values only
replay/            the frames, memory-mapped
lock               held by the process that trains the run
"""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from maskrl.clock import Clock
from maskrl.envs.base import require_extra
from maskrl.files import ENCODER, LOG, read_bytes, read_object, read_text, require_plain, write_whole
from maskrl.files import RunError as RunError
from maskrl.machine import processor
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import Recipe, as_json, difference, digest, digest_of_text
from maskrl.runs import checkpoint
from maskrl.runs.evaluate import EpisodeReturns
from maskrl.runs.lock import Lock, is_trained
from maskrl.runs.log import CLOCK, Kind, Log, Mark, Rewound, events_of
from maskrl.runs.threads import threads_of

Status = Literal["new", "running", "stopped", "done", "failed"]


class RunFiles:
    """Read a run's directory: status, log, versions and results. Works without a readable recipe, which `Run` needs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def status(self) -> Status:
        """The status of the run; an unreadable status file counts as "running".

        A "running" run whose lock no process holds is reported as stopped. (Windows has no locks: there, every such run is.)
        """
        if not os.path.exists(self.path / "status.json"):
            return "new"
        status: Status = read_object(self.path, "status.json").get("status", "running")
        if status != "running" and status in get_args(Status):
            return status
        return "running" if self.is_locked else "stopped"

    @property
    def why(self) -> str:
        """The error that a failed run ended with."""
        return str(read_object(self.path, "status.json").get("why", "status.json cannot be read"))

    def versions(self) -> dict[str, Any]:
        """The versions that the run was started with; empty if they cannot be read."""
        return read_object(self.path, "versions.json")

    @property
    def is_locked(self) -> bool:
        """Whether a process trains this run; False if the file system has no locks."""
        return is_trained(self.path)

    def require_plain(self) -> None:
        """Raise RunError if links, pipes or devices replace files of the run: the directory may be from an untrusted source."""
        require_plain(self.path)

    def events(self, *kinds: Kind) -> Iterator[dict[str, Any]]:
        """The logged events in order, of these kinds or of all; lines torn by a crash are skipped."""
        try:
            content = read_bytes(self.path, "metrics.jsonl", most=LOG)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(
                f"{self.path / 'metrics.jsonl'} cannot be read: {error.strerror}. Restore it or its permissions."
            ) from error
        yield from events_of(content, *kinds)

    @property
    def scores(self) -> list[dict[str, float]]:
        """The evaluations in order: their clock, score, spread over episodes (standard deviation), and number of episodes."""
        return [
            {name: event[name] for name in (*CLOCK, "score")}
            | {"spread": EpisodeReturns(tuple(event["returns"])).spread, "episodes": len(event["returns"])}
            for event in self.events("evaluation")
        ]

    def frame(self) -> Any:
        """The scores as a pandas DataFrame."""
        require_extra("pandas", "report")
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.scores, columns=[*CLOCK, "score", "spread", "episodes"])

    @property
    def videos(self) -> list[Path]:
        """Videos in the run's directory, such as those of `maskrl evaluate --video`."""
        found = (path for path in self.path.rglob("*") if path.suffix.lower() in (".mp4", ".gif"))
        return sorted(path for path in found if path.is_file() and not path.is_symlink())


class Run(RunFiles):
    """One run: its directory, its recipe, its log and its newest checkpoint."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        super().__init__(path)
        self.recipe = recipe
        self._log, self._lock = Log(path), Lock(path)
        self._is_locked_by_us = False

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "Run":
        """Create a run in this directory, or open the one there if it has the same recipe."""
        if os.path.lexists(path / "recipe.json"):
            RunFiles(path).require_plain()
            # A recipe with a user's config cannot be read back, but it can be compared.
            known = read_object(path, "recipe.json") == json.loads(as_json(recipe))
            run = cls(path, recipe) if known else cls.open(path)
            if run.recipe != recipe:
                changes = "\n".join(f"  {line}" for line in difference(run.recipe, recipe))
                raise RunError(
                    f"{path} holds a run of another recipe, made by {run.maker}. Stored and requested values:\n{changes}\n"
                    "Continue it with the overrides it was started with, or choose another --run-dir. If you gave none, its "
                    "version had other defaults: pass the stored values as overrides."
                )
            run.require_same_encoder()
            return run
        # If a process was killed while it wrote these two, the run has not begun: write them again.
        first = ("versions.json", "recipe.json")
        if path.exists() and not all(file.name.startswith(first) for file in path.iterdir()):
            raise RunError(f"{path} is not empty and holds no run. Choose another --run-dir, or empty it.")
        run = cls(path, recipe)
        begun = {**versions(recipe), **begun_from(recipe), "threads": threads_of(recipe)}
        with run._writing():
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / "versions.json", json.dumps(begun, indent=2))
            write_whole(path / "recipe.json", as_json(recipe))
        return run

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open the run in this directory."""
        file = path / "recipe.json"
        if not os.path.lexists(file):
            raise RunError(f"{path} holds no run: there is no recipe.json in it. `maskrl train` makes one.")
        RunFiles(path).require_plain()
        try:
            return cls(path, from_json(read_text(path, "recipe.json")))
        except (ValueError, OSError) as error:
            told = (
                f"{file} cannot be read by this version of maskrl:\n{error}\nUse the version that versions.json names."
            )
            raise RunError(told) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"Cannot write to {self.path}: {error.strerror}. Choose another --run-dir.") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training this run. The system frees the lock when the process ends, even by a crash."""
        with ExitStack() as stack:
            with self._writing():
                stack.enter_context(self._lock)
            stack.callback(setattr, self, "_is_locked_by_us", False)
            self._is_locked_by_us = True
            yield

    def require_same_encoder(self) -> None:
        """Raise RunError if the run's encoder file has changed. A missing file matters only at the start of a run."""
        path, begun = encoder_path(self.recipe), self.versions().get("encoder")
        if path is None or begun is None or not os.path.lexists(path):
            return
        if (now := checkpoint.digest_of(path, most=ENCODER)) != begun:
            raise RunError(
                f"{self.path} was begun with another encoder: {path} had the digest {begun}, and has {now} now. "
                "Put the file back, or choose another --run-dir."
            )

    @property
    def threads(self) -> int:
        """Torch's threads, fixed when the run is created: rounding depends on them, and a continued run must keep its results."""
        begun = self.versions().get("threads")
        return self.recipe.threads or (begun if type(begun) is int and 0 < begun <= 1024 else threads_of(self.recipe))

    # ── log ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def log(self, kind: Kind, clock: Clock, values: Mapping[str, Any]) -> None:
        self._log.append({"kind": kind, **asdict(clock), **values})

    def rewind(self, clock: Clock | None, mark: Mark | None = None, *, evaluated: int | None = None) -> Rewound:
        """Cut the log back to the checkpoint with this clock and mark, or to nothing. See `Log.rewind`."""
        return self._log.rewind(clock, mark, evaluated)

    def complaints(self) -> list[str]:
        """New notes about changes to the run's files by other programs; each is returned once."""
        told, self._log.complaints = self._log.complaints, []
        return told

    def set_status(self, status: Status, why: str = "") -> None:
        write_whole(self.path / "status.json", json.dumps({"status": status, "why": why}))

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def digest(self) -> str:
        """The recipe's digest in checkpoints: of the file's text, because another version of maskrl may have written it."""
        there = (self.path / "recipe.json").exists()
        return digest_of_text(read_text(self.path, "recipe.json")) if there else digest(self.recipe)

    @property
    def digests(self) -> list[str]:
        """Its digest, and those of the recipes before the run was extended; checkpoints from then remain valid."""
        earlier = self.versions().get("extended", [])
        known = [one.get("recipe") for one in earlier if isinstance(one, dict)] if isinstance(earlier, list) else []
        return [self.digest, *(digest for digest in known if isinstance(digest, str))]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def save(self, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint. Earlier ones stay until it and the log so far are on the disk.

        Raise RunError first if another process has taken over the run.
        """
        if self._is_locked_by_us and (told := self._lock.check()) is not None:
            self._log.complaints.append(told)
        return checkpoint.write(self.checkpoints, {**state, "log": self._log.mark()}, recipe=self.digest)

    def restore(
        self, tell: Callable[[str], None] | None = None, *, set_aside: bool = False, older: bool = False
    ) -> dict[str, Any] | None:
        """The newest readable state, or None if none was written. `tell` is called with a note on skipped, damaged ones.

        `set_aside` (for training) renames damaged ones, so that they do not count as one of the two to keep.
        `older` also reads older formats whose policies are still usable.
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
                tell(f"{' and '.join(damaged)}; using the previous checkpoint, {found.path.name}.")
            return content.state
        if damaged:
            raise RunError(
                f"{self.checkpoints} has no checkpoint that can be read: {', '.join(damaged)}. Put a good copy there, or "
                "remove the run's directory and start again."
            )
        reached = max((event["frames"] for event in self.events()), default=0)
        if reached > self.recipe.checkpoint_every:  # there was a checkpoint: do not overwrite the run
            raise RunError(
                f"{self.path} has reached {reached:,} frames, but its checkpoints are gone. Put them back into "
                f"{self.checkpoints.name}/, or remove the run's directory to start again."
            )
        return None

    def newest(self, tell: Callable[[str], None], *, older: bool = False) -> dict[str, Any]:
        """The newest readable state, for reading only; raise RunError if there is none."""
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
        if content.recipe not in self.digests:
            raise RunError(
                f"{path} is of another recipe ({content.recipe}, here {self.digest}). Remove it from this directory; the "
                "previous checkpoint will be used."
            )


def title(recipe: Recipe) -> str:
    return f"{recipe.name} · {recipe.method} · {recipe.profile} profile · seed {recipe.seed}"


def default_path(recipe: Recipe) -> Path:
    """The default directory of a run."""
    return Path("runs") / recipe.name / recipe.method / f"seed-{recipe.seed}-{digest(recipe)}"


def encoder_path(recipe: Recipe) -> Path | None:
    """The file from which the recipe's encoder starts; None if there is none."""
    return None if recipe.encoder_from is None else Path(recipe.encoder_from.replace("{seed}", str(recipe.seed)))


def begun_from(recipe: Recipe) -> dict[str, str]:
    """The digest of that file, to detect changes later."""
    path = encoder_path(recipe)
    if path is None:
        return {}
    with opening_encoder(path):
        return {"encoder": checkpoint.digest_of(path, most=ENCODER)}


@contextmanager
def opening_encoder(path: Path) -> Iterator[None]:
    """Raise RunError, which says how to make the file, if it is missing."""
    try:
        yield
    except FileNotFoundError:
        raise RunError(f"There is no file {path}. `maskrl pretrain` makes one.") from None


HARDWARE = (
    "platform",
    "processor",
    "cpu",
    "instructions",
    "cuda",
    "driver",
    "renderer",
    "threads",
)  # keys of versions.json
PACKAGES = ("maskrl", "torch", "numpy", "gymnasium", "mujoco", "dm_control", "ale-py")


def versions(recipe: Recipe) -> dict[str, str | None]:
    """Versions and hardware that may change results of the same recipe. None: not installed, or unknown."""
    installed = {package: [one.version for one in metadata.distributions(name=package)][:1] for package in PACKAGES}
    return {
        "python": platform.python_version(),
        **{package: found[0] if found else None for package, found in installed.items()},
        "source": source(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpu": processor(),
        "instructions": instructions(),
        "torch build": torch_build(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "driver": driver(),
        "renderer": recipe.env.renderer(),
    }


def instructions() -> str:
    """The instruction sets of torch's kernels, and variables that limit its libraries. The rounding of sums depends on both."""
    asked = [f"{name}={os.environ[name]}" for name in sorted(LIMITS) if os.environ.get(name)]
    return " ".join([str(torch.backends.cpu.get_cpu_capability()), *asked])


# Variables that limit the instruction sets of oneDNN and of Intel's MKL; torch reports its own limit itself.
LIMITS = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")


def torch_build() -> str:
    """The commit of torch, and a digest of its compilers, flags and libraries: two builds of one version may round differently."""
    lines = [line for line in torch.__config__.show().splitlines() if "CPU capability" not in line]
    return f"{str(torch.version.git_version)[:12]} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:12]}"


def driver() -> str | None:
    """The version of the GPU's driver; None if unknown."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return None


@cache  # later commits do not change the running code
def source() -> str | None:
    """The version and origin of an installed maskrl, or the commit of a checkout; None if unknown."""
    package = Path(__file__).resolve().parents[1]
    for wheel in metadata.distributions(name="maskrl"):
        # The record of an editable installation is elsewhere.
        if Path(str(wheel.locate_file("maskrl"))).resolve() == package:
            return f"{wheel.version} {_origin(wheel)}".rstrip()
    command = ["git", "-C", str(package), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True, timeout=2).stdout.strip() or None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _origin(wheel: metadata.Distribution) -> str:
    """The commit or the archive's digest, which pip records for packages that do not come from an index."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        url = json.loads(wheel.read_text("direct_url.json") or "{}")
        digests = [f"{kind}={digest}" for kind, digest in url.get("archive_info", {}).get("hashes", {}).items()]
        return str(url.get("vcs_info", {}).get("commit_id") or next(iter(digests), ""))
    return ""
