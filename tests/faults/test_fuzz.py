"""Broken files of every kind, given to every reader: what comes out is an answer or our own error, and never code that runs."""

import json
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import Silent
from maskrl.clock import Clock
from maskrl.files import EnvironmentFailedError
from maskrl.recipes.schema import Budget
from maskrl.runs import checkpoint
from maskrl.runs.directory import Run, RunError
from maskrl.runs.loggers import Loggers
from maskrl.runs.signals import Stopped
from maskrl.runs.state import Position, State
from maskrl.runs.terminal import Progress
from tiny_runs import tiny_rainbow, tiny_recipe, trained

pytestmark = pytest.mark.faults
many = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBERS = st.integers() | st.floats() | st.sampled_from([0, -1, 2**31, 2**63, 10**40, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


SMALL_FILES = ("recipe.json", "status.json", "versions.json")  # of one JSON object each


def as_bytes(tree: Any) -> bytes:
    return json.dumps(tree).encode()


@st.composite
def harmed(draw: st.DrawFn, original: bytes) -> bytes:
    """Cut, changed, doubled, or nonsense from the start."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200) | st.sampled_from([b"", b"[" * 100_000, b"null", b'"x"', b"NaN"]))
    start = draw(st.integers(0, len(original)))
    end = draw(st.integers(start, min(len(original), start + 20)))
    return original[:start] + draw(st.binary(max_size=10)) + original[end:]


@st.composite
def replanted(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with another value in one place."""
    if isinstance(tree, dict) and tree and draw(st.integers(0, 7)):
        key = draw(st.sampled_from(sorted(tree, key=str)))
        return {**tree, key: draw(replanted(tree[key]))}
    if isinstance(tree, list) and tree and draw(st.integers(0, 7)):
        place = draw(st.integers(0, len(tree) - 1))
        return [*tree[:place], draw(replanted(tree[place])), *tree[place + 1 :]]
    return draw(VALUES)


@pytest.fixture(scope="module", params=[tiny_recipe, tiny_rainbow], ids=["SAC", "Rainbow"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One that was stopped in the middle of an episode, after a few updates."""
    recipe = request.param(budget=Budget(frames=100))
    path = tmp_path_factory.mktemp("fuzz") / "run"
    with pytest.raises(Stopped):
        trained(path, recipe, Silent(interrupt_at=65))
    return Run.open(path)


def read_all(path: Path) -> None:
    """Everything that reads a run's small files."""
    run = Run.open(path)
    assert run.status in ("new", "running", "stopped", "done", "failed")
    assert isinstance(run.versions(), dict)
    events = list(run.events())
    assert all(isinstance(event["frames"], int | float) for event in events)
    progress = Progress(run)
    progress.write({}, Clock(0, 0, 0, 0.0))
    assert isinstance(progress.phase, str)
    run.restore()


def only_our_errors(read: Callable[[], object]) -> None:
    with suppress(RunError, EnvironmentFailedError):
        read()


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *((name, harmed) for name in (*SMALL_FILES, "metrics.jsonl")),
        *((name, lambda content: replanted(json.loads(content)).map(as_bytes)) for name in SMALL_FILES),
    ],
)
@many
@given(data=st.data())
def test_a_harmed_file_is_read_or_refused(run: Run, name: str, harm, data: st.DataObject):
    """Other bytes, or JSON of another shape."""
    file = run.path / name
    original = file.read_bytes()
    try:
        file.write_bytes(data.draw(harm(original)))
        only_our_errors(lambda: read_all(run.path))
    finally:
        file.write_bytes(original)


@many
@given(data=st.data())
def test_lines_of_another_shape_are_passed_over(run: Run, data: st.DataObject):
    file = run.path / "metrics.jsonl"
    original = file.read_bytes()
    lines = original.splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    changed = as_bytes(data.draw(replanted(json.loads(lines[place]))))
    try:
        file.write_bytes(b"\n".join([*lines[:place], changed, *lines[place + 1 :]]))
        read_all(run.path)  # never refused: what is whole is kept
        assert len(list(run.events())) >= len(lines) - 1
    finally:
        file.write_bytes(original)


@pytest.fixture(scope="module")
def stage(run: Run) -> Iterator[Callable[[Path], None]]:
    """Tries to continue from the checkpoints of a directory."""
    with State(run.recipe, run, Loggers([], tell=lambda *_: None)) as state:

        def continued(path: Path) -> None:
            state.run, state.position = Run(path, run.recipe), Position()
            state.resume()

        yield continued


@many
@given(data=st.data())
def test_a_harmed_checkpoint_is_refused_by_its_digest_and_a_renamed_one_by_its_content(
    run: Run, stage, tmp_path: Path, data: st.DataObject
):
    newest, *_ = checkpoint.checkpoints(run.checkpoints)
    original = newest.path.read_bytes()
    # The header has the names, shapes and plain values; the weights behind it have no wrong bits.
    header = 8 + int.from_bytes(original[:8], "little")
    content = data.draw(harmed(original[:header])) + original[header:]
    directory = _fresh(tmp_path / "checkpoints")
    file = directory / newest.path.name
    file.write_bytes(content)
    if content != original:
        with pytest.raises(RunError, match="is damaged"):
            Run(tmp_path, run.recipe).restore()
    file.rename(directory / f"000001-{checkpoint.digest_of(file)}.safetensors")
    only_our_errors(lambda: stage(tmp_path))


@many
@given(data=st.data())
def test_a_checkpoint_of_another_shape_is_refused(run: Run, stage, tmp_path: Path, data: st.DataObject):
    _fresh(tmp_path / "checkpoints")
    state = run.restore()
    assert state is not None
    here = Run(tmp_path, run.recipe)
    here.save(data.draw(replanted(state).filter(lambda tree: isinstance(tree, dict))))
    only_our_errors(lambda: stage(tmp_path))


def test_a_checkpoint_from_a_stranger_runs_no_code(run: Run, tmp_path: Path):
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (time.sleep, (1000,))

    directory = _fresh(tmp_path / "checkpoints")
    (directory / "x").write_bytes(pickle.dumps(Bomb()))
    (directory / "x").rename(directory / f"000001-{checkpoint.digest_of(directory / 'x')}.safetensors")
    with pytest.raises(RunError, match="is damaged"):
        Run(tmp_path, run.recipe).restore()
    with pytest.raises(TypeError, match="only tensors and plain values"):
        Run(tmp_path, run.recipe).save({"bomb": Bomb()})


def _fresh(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory
