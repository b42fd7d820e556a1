"""What reads strangers' bytes, as functions of bytes. Our own errors come out, or nothing does: any other error is a defect."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from maskrl import recipes
from maskrl.analysis import reading
from maskrl.analysis.protocol import method_of, protocol_of
from maskrl.analysis.reading import read
from maskrl.cli.sweep import _row, _summary
from maskrl.clock import Clock
from maskrl.recipes import toy
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import as_json
from maskrl.report import facts
from maskrl.report.facts import run_facts
from maskrl.runs import checkpoint, directory
from maskrl.runs.directory import RunError, RunFiles
from maskrl.runs.log import Log
from maskrl.runs.policy import policy_of
from maskrl.studies.sweep import SweepError, look, read_manifest

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
PLACE = tempfile.TemporaryDirectory(dir=MEMORY)
HERE = Path(PLACE.name)
RECIPE = recipes.resolve("toy/reach", profile="lite")
RUN = HERE / "run"  # of `metrics`
RUN.mkdir()
(RUN / "recipe.json").write_text(as_json(RECIPE))


def compute_once() -> None:
    """Remember what does not depend on the fuzzed bytes: the values of toy/reach, and what is read from `RUN`'s recipe.

    For a process that only fuzzes: it replaces functions of maskrl.
    """
    recipes._find, toy.objectives = cache(recipes._find), cache(toy.objectives)
    method, protocol = method_of(RECIPE), protocol_of(RECIPE)
    for module in (reading, facts):
        module.method_of, module.protocol_of = lambda recipe: method, lambda recipe, versions: protocol
    directory.from_json = cache(from_json)


@contextmanager
def only_ours() -> Iterator[None]:
    """Let our refusals pass: a plain ValueError. Errors of pydantic, json and unicode are subclasses, and must not come out."""
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise


def overrides(data: bytes) -> None:
    """An override on every line."""
    with only_ours():
        recipes.resolve("toy/reach", data.decode("utf-8", "replace").splitlines()[:8], profile="lite")


def recipe(data: bytes) -> None:
    with only_ours():
        from_json(data.decode("utf-8", "replace"))


def metrics(data: bytes) -> None:
    """The log of a run, for a report, a listing and a resume."""
    for name in os.listdir(RUN):  # what an earlier case left: a resume writes
        if name != "recipe.json":
            os.unlink(RUN / name)
    (RUN / "metrics.jsonl").write_bytes(data)
    with suppress(RunError):
        RunFiles(RUN).scores  # noqa: B018, it is computed
        read([RUN])
        with suppress(ValueError, KeyError, TypeError, OverflowError):  # `all_facts` leaves such a run out
            run_facts(RUN)
        Log(RUN).rewind(Clock(10, 10, 5, 1.0), {"lines": 1, "bytes": len(data) // 2, "sha256": ""}, 5)


def manifest(data: bytes) -> None:
    """A sweep, for `maskrl sweep status`."""
    sweep = _folder("sweep")
    (sweep / "sweep.json").write_bytes(data)
    with suppress(SweepError, RunError):
        asked, entries = read_manifest(sweep)
        looks = [look(sweep, entry) for entry in entries[:20]]
        f"{asked['sweep']}: {_summary(looks)}{[_row(one) for one in looks]}"


def csv(data: bytes) -> None:
    (HERE / "scores.csv").write_bytes(data)
    read([HERE / "scores.csv"])


def checkpoints(data: bytes) -> None:
    """A checkpoint under the right name, for `maskrl evaluate`."""
    path, digest = HERE / "checkpoint", hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    with suppress(checkpoint.DamagedError, RunError):
        content = checkpoint.read(checkpoint.Checkpoint(1, digest, path))
        policy_of(RECIPE, content.state)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "overrides": overrides,
    "recipe": recipe,
    "metrics": metrics,
    "manifest": manifest,
    "csv": csv,
    "checkpoints": checkpoints,
}


def seeds() -> dict[str, list[bytes]]:
    """What a fuzzer begins with: good inputs of every kind."""
    clock = {"frames": 10, "decisions": 10, "updates": 5, "seconds": 1.0}
    events = [
        {"kind": "evaluation", **clock, "score": 1.0, "returns": [1.0, 2.0]},
        {"kind": "timing", **clock, "parts": {"actor": 1.0}},
        {"kind": "note", **clock, "text": "a note"},
        {"kind": "episode", **clock, "return": 3.0, "length": 4},
    ]
    sweep = {
        "asked": {"sweep": "toy", "seeds": 1},
        "runs": [{"directory": "a/b", "frames": 100, "command": "maskrl train"}],
    }
    rows = "method,task,seed,frames,score\nmlr,walker-walk,1,100000,500\nmlr,atari/pong,2,1e5,-3.5\n"
    _folder("seed")
    state = {"agent": {"updates": 1}, "position": {"decisions": 1, "seconds": 0.5}, "spaces": {"obs": [9, 32, 32]}}
    written = checkpoint.write(HERE / "seed", state, recipe="0" * 8)
    lines = [
        "seed=3",
        "objective.mask.ratio=0.3",
        "agent.encoder.strides=2,2,1",
        'agent={"batch_size": 8}',
        "objective=none",
    ]
    return {
        "overrides": [line.encode() for line in [*lines, "\n".join(lines[:3]), "budget.frames=1e5"]],
        "recipe": [as_json(RECIPE).encode(), b"{}", b"[]"],
        "metrics": ["".join(json.dumps(event) + "\n" for event in events).encode()],
        "manifest": [json.dumps(sweep).encode()],
        "csv": [rows.encode(), rows.replace("frames", "decisions").encode()],
        "checkpoints": [written.read_bytes()],
    }


def _folder(name: str) -> Path:
    (HERE / name).mkdir(exist_ok=True)
    return HERE / name
