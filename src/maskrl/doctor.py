"""Whether `maskrl train` would work on this machine, and the command that puts right what would not.

Whatever can crash, hang or abort (torch, a simulator, OpenGL, a network disk) is tried in a process of its own: its end is a
row of the table, not the end of the doctor.
"""

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.filesize import decimal

from maskrl import __version__
from maskrl.machine import cores_allowed, memory_limits, ulimit

Family = Literal["toy", "dmcontrol", "atari"]  # of recipes
State = Literal["ok", "warning", "missing", "failed"]  # warning: runs work, but; missing: what nobody has to have
Readiness = Literal["ready", "missing", "broken"]

ALL: tuple[Family, ...] = ("toy", "dmcontrol", "atari")
SECONDS = 150.0  # for one trial: more than the trial of an OpenGL backend gives itself
GB = 10**9
LITTLE_MEMORY, LITTLE_DISK, NO_DISK = 2 * GB, 5 * GB, GB // 10


@dataclass(frozen=True)
class Check:
    """One row: what was found, and the command that puts it right if it is not as it should be."""

    name: str
    state: State
    found: str
    fix: str = ""
    needed_for: tuple[Family, ...] = ()  # families that cannot train while this has failed or is missing
    values: dict[str, Any] = field(default_factory=dict)  # the numbers behind `found`, for programs


class Verdict(NamedTuple):
    """Whether a family would train here."""

    state: Readiness
    because: list[str]  # names of the checks that stand in the way


def examine(run_dir: Path = Path("runs")) -> Iterator[Check]:
    """Every check, as it is made. One at a time: a backend is timed alone, and Ctrl-C ends the trial that is under way."""
    yield _python()
    packages = _packages()
    yield packages
    yield from _torch()
    yield _memory()
    yield _run_directory(run_dir)
    yield _disk(run_dir)
    if packages.state != "failed":  # else what is built on them would only fail again
        yield from _dmcontrol()
        yield _extra("atari", "ale_py", _PONG, ("atari",))
        yield from _conveniences()


def verdict(checks: Iterable[Check]) -> dict[Family, Verdict]:
    """What the checks mean for `train`: a family is as good as the worst of the checks that it needs."""
    wrong = [check for check in checks if check.state in ("failed", "missing")]
    families = {}
    for family in ALL:
        states = {check.name: check.state for check in wrong if family in check.needed_for}
        state: Readiness = "broken" if "failed" in states.values() else "missing" if states else "ready"
        families[family] = Verdict(state, list(states))
    return families


def works(families: Mapping[Family, Verdict]) -> bool:
    """Whether `train` would work for all that is installed. Toys always are, the others are extras."""
    return all(family.state != "broken" for family in families.values())


# ── trials ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class BrokenError(Exception):
    """What a trial ended with, in a line."""


def ask(
    script: str, *arguments: str, settings: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> dict[str, Any]:
    """The `answer` of a script in a fresh Python that sees the packages that we see, with these environment variables."""
    code = f"import json, sys\nsys.path[:] = {sys.path!r}\nanswer = {{}}\n{script}\nprint('\\n' + json.dumps(answer))"
    trial = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **(settings or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that it goes with all that it started
    )
    try:
        said, complaint = trial.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise BrokenError(f"no answer within {seconds:g} seconds") from None
    finally:
        if trial.poll() is None:
            _kill(trial)
    last = (complaint.strip().splitlines() or [""])[-1].strip()
    if trial.returncode < 0:
        raise BrokenError(f"killed by {signal.Signals(-trial.returncode).name}{f': {last}' if last else ''}")
    try:
        if trial.returncode == 0:
            answer: dict[str, Any] = json.loads(said.splitlines()[-1])
            return answer
    except (ValueError, IndexError):
        pass  # a library ended the process as if all were well
    raise BrokenError(last or f"stopped without a word, exit status {trial.returncode}")


def _kill(trial: "subprocess.Popen[str]") -> None:
    if sys.platform == "win32":
        trial.kill()
    else:
        os.killpg(trial.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # what hangs in a network disk cannot even be killed
        trial.communicate(timeout=1)


# ── Python and packages ───────────────────────────────────────────────────────────────────────────────────────────────


class Requirement(NamedTuple):
    """A line of our own package metadata, where the ranges of the tested versions live."""

    package: str
    versions: str  # ">=3.3.6,<4"
    python: str  # "<3.13", "" for any
    extra: str  # "" if every installation has it
    installed: str | None

    @property
    def quoted(self) -> str:
        """As pip takes it in a shell."""
        return shlex.quote(self.package + self.versions)

    @property
    def fits(self) -> bool:
        return self.installed is not None and within(self.installed, self.versions)

    def __str__(self) -> str:
        return f"{self.package} {self.installed or '(not installed)'}"


def requirements(extra: str = "") -> list[Requirement]:
    """What maskrl needs, or one of its extras."""
    try:
        lines = metadata.requires("maskrl") or []
    except metadata.PackageNotFoundError:  # a source folder that is not installed: its own row says so
        return []
    return [requirement for requirement in map(_parse, lines) if requirement.extra == extra]


def _parse(line: str) -> Requirement:
    """Of PEP 508 what pyproject.toml has use for: a whole parser would be one more dependency."""
    wanted, _, marker = line.partition(";")
    package = re.split(r"[^\w.-]", wanted, maxsplit=1)[0]
    versions = ",".join(sorted(re.findall(r"[<>=!~]+ *[^\s,()]+", wanted), reverse=True))  # ">=" before "<"
    python = "".join(next(iter(re.findall(r"python_version *(\S+) *['\"]([\d.]+)", marker)), ()))
    extra = "".join(re.findall(r"extra == ['\"](\w+)", marker)[:1])
    try:
        return Requirement(package, versions, python, extra, metadata.version(package))
    except metadata.PackageNotFoundError:
        return Requirement(package, versions, python, extra, None)


def within(version: str, versions: str) -> bool:
    """Whether a version is in a range such as ">=3.3.6,<4", the two signs that pyproject.toml uses."""

    def release(words: str) -> list[int]:
        numbers = [int(number) for number in re.findall(r"(?:^|(?<=\.))\d+", words.partition("+")[0])]
        return numbers + [0] * (4 - len(numbers))  # 2 is 2.0

    lower, upper = (re.findall(rf"{sign} *([\d.]+)", versions) for sign in (">=", "<"))
    at_least = all(release(version) >= release(bound) for bound in lower)
    return at_least and all(release(version) < release(bound) for bound in upper)


def _install(wanted: list[Requirement]) -> str:
    """The command that brings packages into their ranges; or anew, if they are in them and do not work."""
    if not wanted:
        return "pip install -e ."
    again = "--force-reinstall --no-deps " if all(each.fits for each in wanted) else ""
    return f"pip install {again}{' '.join(each.quoted for each in wanted)}"


def _strays(wanted: list[Requirement]) -> str:
    """What is installed in an untested version, in words."""
    strays = [each for each in wanted if each.installed and not each.fits]
    return ", ".join(f"{each} is outside {each.versions}" for each in strays)


def _python() -> Check:
    version = platform.python_version()
    values = {"version": version, "executable": sys.executable}
    if requirements():
        return Check("Python", "ok", version, needed_for=ALL, values=values)
    found = f"{version}; maskrl itself is not installed, so versions cannot be compared with the tested ones"
    return Check("Python", "warning", found, _install([]), ALL, values)


# The smallest of our own tasks needs all of them but torch.
_TOY = """
from maskrl.envs import ToyControl
env = ToyControl().make(seed=0, training=True)
env.reset()
env.step(env.action_space.sample())
"""


def _packages() -> Check:
    wanted = requirements()
    versions = {"maskrl": __version__} | {each.package: each.installed for each in wanted}
    found = ", ".join([f"maskrl {__version__}", *map(str, wanted)])
    try:
        ask(_TOY)
    except BrokenError as error:
        fix = _install([each for each in wanted if each.package != "torch"])  # which is large, and has its own row
        return Check("packages", "failed", f"{found}; a toy does not start: {error}", fix, ALL, versions)
    if strays := _strays(wanted):
        return Check("packages", "warning", strays, _install(wanted), ALL, versions)
    return Check("packages", "ok", found, needed_for=ALL, values=versions)


def _extra(
    name: str, module: str, script: str, needed_for: tuple[Family, ...] = (), settings: Mapping[str, str] | None = None
) -> Check:
    """An extra: whether it is there, in tested versions, and does what the script asks of it."""
    wanted = requirements(name)
    if importlib.util.find_spec(module) is None:
        found, fix = "not installed", f"pip install 'maskrl[{name}]'"
        for python in {each.python for each in wanted if not within(platform.python_version(), each.python)}:
            found, fix = f"not installed: it needs Python {python}", f"uv venv --python '{python}' && uv {fix}"
        return Check(name, "missing", found, fix, needed_for)
    values: dict[str, Any] = {"versions": {each.package: each.installed for each in wanted}}
    found = ", ".join(map(str, wanted))
    try:
        values |= ask(script, settings=settings)
    except BrokenError as error:
        state: State = "failed" if needed_for else "warning"
        return Check(name, state, f"{found}; it does not work: {error}", _install(wanted), needed_for, values)
    words = values.pop("words", [])
    if strays := _strays(wanted):
        return Check(name, "warning", strays, _install(wanted), needed_for, values)
    return Check(name, "ok", "; ".join([found, *words]), needed_for=needed_for, values=values)


def _conveniences() -> Iterator[Check]:
    """Extras without which a run works."""
    yield _extra("report", "matplotlib", "from matplotlib.backends.backend_agg import FigureCanvasAgg")
    yield _extra("video", "imageio_ffmpeg", "import imageio_ffmpeg; imageio_ffmpeg.get_ffmpeg_exe()")
    # If it is installed, a run uses it: so it must work then. The import is what torch's writer begins with.
    events = "from tensorboard.summary.writer.event_file_writer import EventFileWriter"
    yield _extra("tensorboard", "tensorboard", events, ALL if importlib.util.find_spec("tensorboard") else ())
    yield _extra("ray", "ray", "import ray")


# ── torch, memory and cores ───────────────────────────────────────────────────────────────────────────────────────────

_CONVOLUTION = """
import warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import torch
    cuda = torch.cuda.is_available()
device = sys.argv[1]
layer = torch.nn.Conv2d(3, 8, 3, device=device)
layer(torch.rand(2, 3, 16, 16, device=device)).square().mean().backward()
if not layer.weight.grad.isfinite().all():
    raise SystemExit("the gradient of a convolution is not finite")
answer = {
    "version": torch.__version__,
    "threads": torch.get_num_threads(),
    "cuda": cuda,
    "built_for": torch.version.cuda or torch.version.hip,
    "complaints": [str(each.message).split("\\n")[0] for each in warned if "CUDA" in str(each.message)],
}
if device == "cuda":
    about = torch.cuda.get_device_properties(0)
    answer |= {"device": about.name, "memory": about.total_memory}
"""


def _torch() -> Iterator[Check]:
    """Torch itself, its threads, and its CUDA device."""
    wanted = [each for each in requirements() if each.package == "torch"]
    try:
        answer = ask(_CONVOLUTION, "cpu")
    except BrokenError as error:
        yield Check("torch", "failed", f"a convolution does not learn: {error}", _install(wanted), ALL)
        return
    threads, cores = answer["threads"], cores_allowed()
    found = f"{answer['version']}, threads: {threads}, cores: {cores}; a convolution learns"
    values = {"version": answer["version"], "threads": threads, "cores": cores}
    if threads > cores:
        found = f"{found}, but more threads than cores wait for each other"
        yield Check("torch", "warning", found, f"export OMP_NUM_THREADS={cores}", ALL, values)
    else:
        yield Check("torch", "ok", found, needed_for=ALL, values=values)
    if answer["cuda"]:
        yield _cuda()
    elif answer["complaints"]:
        yield Check("CUDA", "warning", answer["complaints"][0], "nvidia-smi # shows the driver, which needs an update")
    elif Path("/dev/nvidiactl").exists() and not answer["built_for"]:
        fix = f"pip install --force-reinstall {' '.join(each.quoted for each in wanted)}"
        yield Check("CUDA", "warning", "there is an NVIDIA device, but this torch is built without CUDA", fix)
    else:
        yield Check("CUDA", "missing", "no CUDA device: the lite profile is the default")


def _cuda() -> Check:
    try:
        answer = ask(_CONVOLUTION, "cuda")
    except BrokenError as error:
        found = f"torch sees a device, on which a convolution does not learn: {error}"
        return Check("CUDA", "failed", found, "export CUDA_VISIBLE_DEVICES= # trains on the CPU", ALL)
    values = {name: answer[name] for name in ("device", "memory")}
    return Check("CUDA", "ok", f"{values['device']}, {decimal(values['memory'])}", values=values)


def _memory() -> Check:
    limits = memory_limits()
    if not limits:
        return Check("memory", "warning", "this system does not tell how much is free")
    least = min(limits, key=lambda name: limits[name])
    found = ", ".join(f"{decimal(amount)} free ({name})" for name, amount in limits.items())
    if limits[least] >= LITTLE_MEMORY:
        return Check("memory", "ok", found, values=limits)
    fix = {
        "machine": "ps -e -o rss,args --sort=-rss | head # shows what could be closed",
        "control group": "docker run --memory=8g … # or the --mem of your scheduler",
        "ulimit -v": "ulimit -v unlimited",
    }[least]
    return Check("memory", "warning", f"{found}; a run may need {decimal(LITTLE_MEMORY)}", fix, values=limits)


# ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

# All that a run does with its files: write, make sure, map into memory, put in the place of another, lock.
_FILES = """
import mmap, os
name = sys.argv[1]
with open(name + ".new", "w+b") as file:
    file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[-4:] = b"mask"
        memory.flush()
os.replace(name + ".new", name)
with open(name, "rb") as file, open(name, "rb") as other:
    if file.read()[-4:] != b"mask":
        raise SystemExit("what is written through a memory map does not arrive in the file")
    answer["locks"] = False
    try:
        import fcntl
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        answer["locks"] = True
    except (ImportError, OSError):
        pass
"""


ELSEWHERE = "maskrl train … --run-dir DIR # a DIR on another disk"


def _run_directory(run_dir: Path) -> Check:
    """What a run does with its files. The directory is left as it was."""
    name = "run directory"
    try:
        with _borrowed(run_dir) as folder:
            values = ask(_FILES, str(folder / "file"))
    except (OSError, BrokenError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        return Check(name, "failed", f"{run_dir} cannot be used: {words}", ELSEWHERE, ALL)
    if values["locks"]:
        found = f"{run_dir} can be written to, mapped into memory and locked"
        return Check(name, "ok", found, needed_for=ALL, values=values)
    found = f"no locks in {run_dir}: two starts of the same run cannot be kept apart on this file system"
    return Check(name, "warning", found, ELSEWHERE, ALL, values)


def _disk(run_dir: Path) -> Check:
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if os.path.exists(path))
    room, fix = {"free": shutil.disk_usage(there).free}, ELSEWHERE
    found = f"{decimal(room['free'])} free"
    if (largest := ulimit("RLIMIT_FSIZE")) is not None:
        found += f", but no file may be larger than {decimal(largest)} (ulimit -f)"
        fix = "ulimit -f unlimited" if largest < room["free"] else fix
        room["ulimit -f"] = largest
    least = min(room.values())
    if least < NO_DISK:
        return Check("disk", "failed", f"{found}; the smallest run needs {decimal(NO_DISK)}", fix, ALL, room)
    if least < LITTLE_DISK:
        return Check("disk", "warning", f"{found}; a long run may need {decimal(LITTLE_DISK)}", fix, ALL, room)
    return Check("disk", "ok", found, needed_for=ALL, values=room)


@contextmanager
def _borrowed(run_dir: Path) -> Iterator[Path]:
    """A temporary directory; parents it had to create are removed."""
    missing = [path for path in (run_dir, *run_dir.parents) if not os.path.exists(path)]
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=run_dir) as folder:
            yield Path(folder)
    finally:
        for path in missing:
            with suppress(OSError):  # somebody has put something there meanwhile
                path.rmdir()


# ── simulators ────────────────────────────────────────────────────────────────────────────────────────────────────────

_CARTPOLE = """
from dm_control import suite
suite.load("cartpole", "swingup").reset()
answer["words"] = ["cartpole-swingup loads"]
"""

_PONG = """
from maskrl.envs import Atari
env = Atari(task="pong").make(seed=0, training=True)
env.reset()
for _ in range(10):
    env.step(0)
from ale_py import roms
answer["roms"] = sum(roms.get_rom_path(game) is not None for game in roms.get_all_rom_ids())
answer["words"] = [f"{answer['roms']} ROMs", "pong plays"]
"""

_FRAMES = """
import time
from maskrl.envs import DMControl
from maskrl.envs.gl import NoBackendError, choose_gl
try:
    answer["renderer"] = choose_gl().renderer
except NoBackendError as error:
    raise SystemExit(*error.failures.values())
for name, shadow_size in ("fps", None), ("fps_with_small_shadows", 512):
    env = DMControl(task="cartpole-swingup", action_repeat=1, shadow_size=shadow_size).make(seed=0, training=True)
    env.reset()
    frames, start = 0, time.perf_counter()
    while time.perf_counter() < start + 0.7:
        frames += 1
        if env.step(env.action_space.sample())[3]:
            env.reset()
    answer[name] = round(frames / (time.perf_counter() - start), 1)
    env.close()
"""


def _dmcontrol() -> Iterator[Check]:
    """The pair of mujoco and dm_control without drawing, then what draws."""
    pair = _extra("dmcontrol", "dm_control", _CARTPOLE, ("dmcontrol",), {"MUJOCO_GL": "off"})
    yield pair
    if pair.state not in ("ok", "warning"):
        return
    from maskrl.envs.gl import PACKAGES  # here: it needs numpy and Gymnasium, which are known to work by now

    backends = {}
    for backend, package in PACKAGES.items():
        backends[backend] = _backend(backend, package)
        yield backends[backend]
    yield _opengl(backends, os.environ.get("MUJOCO_GL", "").strip().lower())


def _backend(backend: str, package: str) -> Check:
    """Whether it draws, and how fast."""
    try:
        answer = ask(_FRAMES, settings={"MUJOCO_GL": backend})
    except BrokenError as error:
        bound = "PYOPENGL_PLATFORM" in str(error)  # to another backend
        fix = "unset PYOPENGL_PLATFORM" if bound else f"apt install {package}"
        return Check(f"OpenGL {backend}", "missing", f"does not draw: {error}", fix)
    speeds = f"{answer['fps']:,.0f} frames a second, {answer['fps_with_small_shadows']:,.0f} with small shadows"
    return Check(f"OpenGL {backend}", "ok", f"{speeds}; {answer['renderer']}", values=answer)


def _opengl(backends: Mapping[str, Check], asked: str) -> Check:
    """Whether the backend that a run would choose draws. `asked`: what MUJOCO_GL says."""
    drawing = [backend for backend, check in backends.items() if check.state == "ok"]
    if asked in drawing or (drawing and not asked):
        found = f"{asked}, as MUJOCO_GL says" if asked else f"{drawing[0]}, the first that draws"
        return Check("OpenGL", "ok", found, needed_for=("dmcontrol",))
    first = next(iter(backends.values())).fix
    if not asked:
        return Check("OpenGL", "failed", "no backend draws here", first, ("dmcontrol",))
    install = backends[asked].fix if asked in backends else f"unset MUJOCO_GL && {first}"
    fix = "unset MUJOCO_GL" if drawing else install
    return Check("OpenGL", "failed", f"MUJOCO_GL={asked} does not draw here", fix, ("dmcontrol",))
