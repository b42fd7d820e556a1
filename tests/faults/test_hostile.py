"""A run directory from a stranger: every file of a real run becomes something else, and every command that reads runs is called.

What comes out is a refusal that names the file and what it is. Nothing outside is touched, and nothing hangs. The files are those
of a real sweep, run, pre-training and results, also of an environment of one's own. The commands are those of the command line's
own table: a new one must be added here.
"""

import os
import shutil
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import maskrl
import own_env
from calling import called, commands
from maskrl.envs import consent
from maskrl.files import RunError
from maskrl.runs import checkpoint
from maskrl.runs.directory import Run
from maskrl.studies.jobs import expand
from sweeps import TINY

pytestmark = pytest.mark.faults

GRID = [word for word in TINY if not word.startswith("objective")]
# An environment of one's own, with numbers beside its pictures.
OWN = f"{Path(own_env.__file__)}:make_dict"
OWN_GRID = [
    *("budget.frames=60", "evaluation.every=30", "evaluation.episodes=1", "checkpoint_every=15", "threads=1"),
    *("agent.warmup_decisions=20", "agent.batch_size=8", "agent.hidden=16", "agent.encoder.filters=4", "env.size=36"),
    "env.action_repeat=1",
]
PRETRAIN = ["--transitions", "40", "--updates", "2"]


class Place:
    """A sweep of one run, its results, and a pre-training with its agent."""

    def __init__(self, root: Path, name: str = "toy/reach", grid: Sequence[str] = GRID) -> None:
        self.words = ["sweep", name, *grid, "--methods", "baseline", "--seeds", "1", "--profile", "lite"]
        self.sweep, self.pretraining, self.out = root / "sweep", root / "pretraining", root / "out"
        self.results = root / "results"
        (self.job,) = expand(name, seeds=1, methods=["baseline"], grid=grid, profile="lite")
        self.run = self.sweep / self.job.directory

    def make(self) -> None:
        succeed([*self.words, "--out", str(self.sweep)])
        succeed(["results", str(self.run), "--out", str(self.results)])
        (self.run / "status.json").write_text(
            '{"status": "stopped"}'
        )  # so that `train` continues it, from before its end
        checkpoint.checkpoints(self.run / "checkpoints")[0].path.unlink()


def succeed(words: list[str]) -> None:
    code, printed = called(words, seconds=300)
    assert code == 0, printed


# How each command is called on a place, and the folder whose files it reads.
OF_A_RUN: dict[str, Callable[[Place], list[str]]] = {
    "train": lambda place: place.job.command(place.sweep),
    "evaluate": lambda place: ["evaluate", str(place.run), "--episodes", "1"],
    "probe": lambda place: ["probe", str(place.run), "--clips", "2"],
    "pretrain": lambda place: ["pretrain", str(place.run), "--out", str(place.out / "pretraining"), *PRETRAIN],
    "masks": lambda place: ["masks", str(place.run), "--out", str(place.out / "masks.html")],
    "report": lambda place: ["report", str(place.run), "--out", str(place.out / "report.html")],
    "export": lambda place: [
        *("export", str(place.run), "--out", str(place.out / "policy.pt2")),
        *("--episodes", "0", "--observations", "1", "--force"),
    ],
    "extend": lambda place: ["extend", str(place.run)],
    "play": lambda place: ["play", str(place.run), "--episodes", "1", "--out", str(place.out / "play.gif"), "--force"],
    "results": lambda place: ["results", str(place.run), "--out", str(place.out / "results")],
}
OF_A_SWEEP: dict[str, Callable[[Place], list[str]]] = {
    "sweep status": lambda place: ["sweep", "status", str(place.sweep)],
    "sweep start": lambda place: [*place.words, "--out", str(place.sweep)],
}
OF_A_PRETRAINING: dict[str, Callable[[Place], list[str]]] = {
    "pretrain": lambda place: ["pretrain", str(place.run), "--out", str(place.pretraining), *PRETRAIN],
    "train": lambda place: [
        *("train", "toy/reach", *GRID, "--method", "baseline", "--run-dir", str(place.out / "begun")),
        f"encoder_from={place.pretraining / 'encoder.safetensors'}",
    ],
}
OF_RESULTS = {"report": lambda place: ["report", str(place.results), "--out", str(place.out / "report.html")]}
OF_NO_RUN = {"check", "doctor", "licences", "plan", "recipes list", "recipes show"}  # and `bench …`


def test_every_command_is_in_this_test_or_reads_no_run():
    known, missing = {*OF_A_RUN, *OF_A_SWEEP, *OF_A_PRETRAINING}, []
    for name, command in commands().items():
        takes = {param.metavar for param in command.params if param.param_type_name == "argument"}
        reads = takes & {"RUN", "RUNS", "DIR"} or not (name in OF_NO_RUN or name.startswith("bench "))
        if reads and name not in known:
            missing.append(name)
    assert not missing, "say in this file how to call it, or that it reads no run"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("hostile"))
    made.make()
    succeed(["probe", str(made.run), "--clips", "2"])
    succeed(OF_A_PRETRAINING["pretrain"](made))
    os.remove(made.pretraining / "encoder.safetensors")  # so that `pretrain` continues it
    succeed(OF_A_PRETRAINING["pretrain"](made))
    yield made
    print(f"attacks: {ATTACKS.total()}, {dict(ATTACKS)}")


@pytest.fixture(scope="module")
def own_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(root / "config"))  # what is trusted stays in the test
        patch.setenv(consent.INHERITED, "")
        made = Place(root, OWN, OWN_GRID)
        made.make()
        yield made


# ── What a file may be instead ────────────────────────────────────────────────────────────────────────────────────────


def link(path: Path, outside: Path) -> str:
    path.symlink_to(outside / "secret")
    return "a symbolic link"


def link_to_nothing(path: Path, outside: Path) -> str:
    path.symlink_to(outside / "new")
    return "a symbolic link"


def link_to_folder(path: Path, outside: Path) -> str:
    path.symlink_to(outside)
    return "a symbolic link"


def pipe(path: Path, outside: Path) -> str:
    os.mkfifo(path)
    return "a named pipe"


def device(path: Path, outside: Path) -> str:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        return pipe(path, outside)
    return "a device"


def listener(path: Path, outside: Path) -> str:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)
    return "a socket"


def folder(path: Path, outside: Path) -> str:
    path.mkdir()
    return "a directory"


ATTACKS = Counter[str]()  # by command: `pytest -s` shows them, for docs/reliability.md
Kind = Callable[[Path, Path], str]
KINDS: tuple[Kind, ...] = (link, link_to_nothing, link_to_folder, pipe, device, listener, folder)


def files_of(root: Path) -> list[str]:
    """Every file of a folder, and every folder in it, by its name."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@contextmanager
def replaced(path: Path, outside: Path, by: Callable[[Path, Path], str]) -> Iterator[str]:
    aside = path.with_name(f"{path.name}.good")
    path.rename(aside)
    try:
        yield by(path, outside)
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


def contents(root: Path) -> dict[str, tuple[bytes, float]]:
    return {name: ((root / name).read_bytes(), (root / name).stat().st_mtime) for name in files_of(root)}


def attack(root: Path, name: str, words: list[str], outside: Path, kinds: Sequence[Kind] = KINDS) -> list[str]:
    """What is wrong with how a command meets a file that is something else, in each of these ways."""
    wrong = []
    for kind in kinds:
        if kind is folder and (root / name).is_dir():
            continue
        before = contents(outside)
        with replaced(root / name, outside, kind) as what:
            code, printed = called(words)
        flat = " ".join(printed.split())
        if what not in flat or Path(name).name not in flat.replace("\n", "") or "Traceback" in printed:
            wrong.append(f"{words[:2]} and {name} as {kind.__name__}: exit code {code}: {flat[-300:]}")
        ATTACKS[words[0]] += 1
        if contents(outside) != before:
            wrong.append(f"{words[:2]} and {name} as {kind.__name__} touched what is outside")
    return wrong


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("untouched")
    return tmp_path / "outside"


@pytest.mark.parametrize("command", OF_A_RUN)
def test_a_run_of_which_a_file_is_something_else_is_refused(place: Place, outside: Path, command: str):
    names = files_of(place.run)
    assert {"recipe.json", "lock", "checkpoints", "replay/frames.u8", "probe.json"} <= set(names)
    wrong = [line for name in names for line in attack(place.run, name, OF_A_RUN[command](place), outside)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", OF_A_RUN)
def test_a_run_of_an_own_environment_of_which_a_file_is_something_else_is_refused(
    own_place: Place, outside: Path, command: str
):
    words, root = OF_A_RUN[command](own_place), own_place.run
    wrong = [line for name in files_of(root) for line in attack(root, name, words, outside, (link, pipe))]
    assert not wrong, "\n".join(wrong)


def test_a_policy_is_not_loaded_from_a_run_of_which_a_file_is_something_else(place: Place, outside: Path):
    """In Python, `maskrl.load`."""
    for name in files_of(place.run):
        for kind in KINDS:
            if kind is folder and (place.run / name).is_dir():
                continue
            with replaced(place.run / name, outside, kind) as what, pytest.raises(RunError) as refused:
                maskrl.load(place.run)
            assert what in str(refused.value)
            assert name in str(refused.value)
            ATTACKS["maskrl.load"] += 1
    assert contents(outside) == {"secret": (b"untouched", (outside / "secret").stat().st_mtime)}


@pytest.mark.parametrize("name", ["about.json", "probes.csv", "scores.csv"])
def test_published_results_of_which_a_file_is_something_else_are_refused(place: Place, outside: Path, name: str):
    wrong = attack(place.results, name, OF_RESULTS["report"](place), outside)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", OF_A_SWEEP)
def test_a_sweep_of_which_a_file_is_something_else_is_refused(place: Place, outside: Path, command: str):
    names = files_of(place.sweep)
    assert "sweep.json" in names
    wrong = [line for name in names for line in attack(place.sweep, name, OF_A_SWEEP[command](place), outside)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", OF_A_PRETRAINING)
def test_a_pretraining_of_which_a_file_is_something_else_is_refused(place: Place, outside: Path, command: str):
    names = files_of(place.pretraining) if command == "pretrain" else ["encoder.safetensors"]
    words = OF_A_PRETRAINING[command](place)
    wrong = [line for name in names for line in attack(place.pretraining, name, words, outside)]
    assert not wrong, "\n".join(wrong)


# ── Sizes, hard links, and paths that lead out ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["recipe.json", "status.json", "versions.json", "probe.json", "metrics.jsonl"])
def test_a_file_of_terabytes_is_refused_by_its_size(place: Place, outside: Path, name: str):
    def hole(path: Path, _: Path) -> str:
        path.touch()
        os.truncate(path, 1 << 40)
        return "1,099,511,627,776 bytes"

    with replaced(place.run / name, outside, hole) as what:
        code, printed = called(OF_A_RUN["report"](place))
    assert what in " ".join(printed.split()), (code, printed)


def test_an_encoder_of_terabytes_is_refused_before_it_is_read(place: Place, outside: Path):
    def hole(path: Path, _: Path) -> str:
        shutil.copy(path.with_name(f"{path.name}.good"), path)
        os.truncate(path, 1 << 40)
        return "1,099,511,627,776 bytes"

    with replaced(place.pretraining / "encoder.safetensors", outside, hole) as what:
        code, printed = called(OF_A_PRETRAINING["train"](place))
    assert code == 2
    assert what in " ".join(printed.split())


def test_an_environment_that_is_a_pipe_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "env.py")
    code, printed = called(["train", f"{tmp_path / 'env.py'}:make", "--run-dir", str(tmp_path / "run")])
    assert code == 2
    assert "is a named pipe (FIFO)" in " ".join(printed.split())


def test_a_checkpoint_of_terabytes_is_refused_by_its_header(place: Place, outside: Path):
    newest, *_ = checkpoint.checkpoints(place.run / "checkpoints")
    os.truncate(shutil.copy(newest.path, outside / "long"), 1 << 40)
    with pytest.raises(checkpoint.DamagedError, match=r"has 1,099,511,627,776 bytes, and its header says"):
        checkpoint.read(checkpoint.Checkpoint(1, newest.digest, outside / "long"))


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "replay/frames.u8"])
def test_a_hard_link_is_not_written_through(place: Place, outside: Path, name: str):
    def linked(path: Path, _: Path) -> str:
        shutil.copy(path.with_name(f"{path.name}.good"), outside / "other")
        os.link(outside / "other", path)
        return "is a hard link"

    with replaced(place.run / name, outside, linked) as what:
        (place.run / "status.json").write_text('{"status": "stopped"}')
        before = (outside / "other").read_bytes()
        code, printed = called(OF_A_RUN["train"](place))
        assert (outside / "other").read_bytes() == before
        replaced_by_a_copy = code == 0 and (place.run / name).stat().st_nlink == 1  # as a log that is cut back
    assert replaced_by_a_copy or (code == 2 and what in " ".join(printed.split())), printed


@pytest.mark.parametrize("directory", ["../../outside", "/etc", "..", "a/../../b", ""])
def test_a_sweep_that_leads_elsewhere_is_refused(place: Place, outside: Path, directory: str):
    text = (place.sweep / "sweep.json").read_text().replace(place.job.directory, directory)

    def leads_out(path: Path, _: Path) -> str:
        path.write_text(text)
        return "lies outside"

    with replaced(place.sweep / "sweep.json", outside, leads_out) as what:
        code, printed = called(OF_A_SWEEP["sweep status"](place))
    assert code == 2
    assert what in printed


def test_a_link_to_the_whole_directory_is_followed(place: Place, tmp_path: Path):
    """Its user has named it."""
    (tmp_path / "here").symlink_to(place.run)
    assert Run.open(tmp_path / "here").recipe == Run.open(place.run).recipe


def test_a_refusal_says_what_is_there_and_what_to_do(tmp_path: Path):
    os.mkfifo(tmp_path / "recipe.json")
    words = r"recipe\.json is a named pipe \(FIFO\), but must be a file\. .* Remove it, or put a file there\."
    with pytest.raises(RunError, match=words):
        Run.open(tmp_path)
