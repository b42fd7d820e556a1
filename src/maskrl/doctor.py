"""Check whether `maskrl train` works on this machine, with commands that fix problems.

Everything that can crash, hang or abort (torch, a simulator, OpenGL, a network disk) is tried in a separate process, so that a
crash becomes a row of the table and does not end the doctor.
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
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.filesize import decimal

from maskrl import __version__
from maskrl.machine import cores_allowed, memory_limits, ulimit

Family = Literal["toy", "dmcontrol", "atari"]  # of recipes
State = Literal["ok", "warning", "missing", "failed"]  # warning: runs work, with a drawback; missing: optional
Readiness = Literal["ready", "missing", "broken"]

ALL: tuple[Family, ...] = ("toy", "dmcontrol", "atari")
SECONDS = 150.0  # for one trial: longer than the time-out of an OpenGL backend's trial
GB = 10**9
LITTLE_MEMORY, LITTLE_DISK, NO_DISK = 2 * GB, 5 * GB, GB // 10


@dataclass(frozen=True)
class Check:
    """One row: what was found, and the command that fixes a problem."""

    name: str
    state: State
    found: str
    fix: str = ""
    needed_for: tuple[Family, ...] = ()  # families that cannot train if this failed or is missing


class Verdict(NamedTuple):
    """Whether a family would train on this machine."""

    state: Readiness
    because: list[str]  # names of the checks that prevent it


def examine(run_dir: Path = Path("runs")) -> Iterator[Check]:
    """Yield the checks one at a time, so that Ctrl-C ends the current trial."""
    packages = _packages()
    yield packages
    yield _torch()
    yield _memory()
    yield _run_directory(run_dir)
    yield _disk(run_dir)
    if packages.state == "failed":  # other checks would fail for the same reason
        return
    dmcontrol = _extra("dmcontrol", "dm_control", _CARTPOLE, {"MUJOCO_GL": "off"})
    yield dmcontrol
    if dmcontrol.state == "ok":  # otherwise the renderer is unknown
        yield _opengl(os.environ.get("MUJOCO_GL", "").strip().lower())
    yield _extra("atari", "ale_py", _PONG)


def verdict(checks: Iterable[Check]) -> dict[Family, Verdict]:
    """The verdict for each family: that of the worst check that it needs."""
    wrong = [check for check in checks if check.state in ("failed", "missing")]
    families = {}
    for family in ALL:
        states = {check.name: check.state for check in wrong if family in check.needed_for}
        state: Readiness = "broken" if "failed" in states.values() else "missing" if states else "ready"
        families[family] = Verdict(state, list(states))
    return families


def works(families: Mapping[Family, Verdict]) -> bool:
    """Whether `train` would work for all installed families. Toys are always installed, the others are extras."""
    return all(family.state != "broken" for family in families.values())


# ── trials ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class BrokenError(Exception):
    """A failed trial; the message is one line."""


def ask(
    script: str, *arguments: str, settings: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> dict[str, Any]:
    """Run a script in a fresh Python with the same packages and these environment variables; return its `answer`."""
    code = f"import json, sys\nsys.path[:] = {sys.path!r}\nanswer = {{}}\n{script}\nprint('\\n' + json.dumps(answer))"
    trial = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **(settings or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that its child processes can be ended with it
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
        pass  # a library ended the process with exit status 0
    raise BrokenError(last or f"stopped without a message, exit status {trial.returncode}")


def _kill(trial: "subprocess.Popen[str]") -> None:
    if sys.platform == "win32":
        trial.kill()
    else:
        os.killpg(trial.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # a process that hangs in a network disk cannot be killed
        trial.communicate(timeout=1)


# ── Python and packages ───────────────────────────────────────────────────────────────────────────────────────────────


def requirements(extra: str = "") -> list[str]:
    """The requirements of maskrl, or of one of its extras, from its package metadata, with the tested versions.

    Such as `mujoco<4,>=3.3.6; python_version < "3.13" and extra == "dmcontrol"`.
    """
    try:
        lines = metadata.requires("maskrl") or []
    except metadata.PackageNotFoundError:  # maskrl is not installed: another row reports it
        return []
    return [line for line in lines if re.findall(r"extra == ['\"](\w+)", line) == ([extra] if extra else [])]


def _versions(wanted: list[str]) -> str:
    """The packages with their installed versions."""
    found = []
    for package in (re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{package} (not installed)")
    return ", ".join(found)


def _install(wanted: list[str]) -> str:
    """The command that reinstalls packages in the tested versions."""
    return f"pip install --force-reinstall --no-deps {shlex.join(line.partition(';')[0].strip() for line in wanted)}"


# The smallest task needs all packages except torch.
_TOY = """
from maskrl.envs import ToyControl
env = ToyControl().make(seed=0, training=True)
env.reset()
env.step(env.action_space.sample())
"""


def _packages() -> Check:
    wanted = requirements()
    found = f"Python {platform.python_version()}, maskrl {__version__}, {_versions(wanted)}"
    try:
        ask(_TOY)
    except BrokenError as error:
        fix = _install([line for line in wanted if not line.startswith("torch")])  # torch is large, and has its own row
        return Check("packages", "failed", f"{found}; a toy does not start: {error}", fix, ALL)
    if not wanted:
        found = f"{found}maskrl itself is not installed, so the versions that it needs are unknown"
        return Check("packages", "warning", found, "pip install -e .", ALL)
    return Check("packages", "ok", found, needed_for=ALL)


def _extra(family: Family, module: str, script: str, settings: Mapping[str, str] | None = None) -> Check:
    """Check a simulator: whether it is installed, and whether the script works."""
    wanted = requirements(family)
    if importlib.util.find_spec(module) is None:
        found, fix = "not installed", f"pip install 'maskrl[{family}]'"
        for limit in re.findall(r"python_version < ['\"]3\.(\d+)", " ".join(wanted))[:1]:
            if sys.version_info >= (3, int(limit)):
                found, fix = f"{found}: it needs Python <3.{limit}", f"uv venv --python '<3.{limit}' && uv {fix}"
        return Check(family, "missing", found, fix, (family,))
    found = _versions(wanted)
    try:
        ask(script, settings=settings)
    except BrokenError as error:
        return Check(family, "failed", f"{found}; it does not work: {error}", _install(wanted), (family,))
    return Check(family, "ok", found, needed_for=(family,))


# ── torch, memory and cores ───────────────────────────────────────────────────────────────────────────────────────────

_CONVOLUTION = """
import warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import torch
    cuda = torch.cuda.is_available()
for device in ("cpu", "cuda") if cuda else ("cpu",):
    try:
        layer = torch.nn.Conv2d(3, 8, 3, device=device)
        layer(torch.rand(2, 3, 16, 16, device=device)).square().mean().backward()
    except RuntimeError as error:
        raise SystemExit(f"on {device}: {error}")
answer = {
    "version": torch.__version__,
    "threads": torch.get_num_threads(),
    "device": torch.cuda.get_device_name() if cuda else "CPU",
    "complaints": [str(each.message).split("\\n")[0] for each in warned if "CUDA" in str(each.message)],
}
"""


def _torch() -> Check:
    """Check whether torch can train on its device, and its threads."""
    try:
        answer = ask(_CONVOLUTION)
    except BrokenError as error:
        again = _install([line for line in requirements() if line.startswith("torch")])
        fix = "export CUDA_VISIBLE_DEVICES= # trains on the CPU" if str(error).startswith("on cuda") else again
        return Check("torch", "failed", f"it cannot train a convolution: {error}", fix, ALL)
    threads, cores = answer["threads"], cores_allowed()
    found = f"{answer['version']}, device: {answer['device']}, threads: {threads}, cores: {cores}"
    for complaint in answer["complaints"]:
        return Check("torch", "warning", f"{found}; {complaint}", "nvidia-smi # shows the driver to update", ALL)
    if threads > cores:
        found = f"{found}; more threads than cores wait for each other"
        return Check("torch", "warning", found, f"export OMP_NUM_THREADS={cores}", ALL)
    return Check("torch", "ok", found, needed_for=ALL)


def _memory() -> Check:
    limits = memory_limits()
    if not limits:
        return Check("memory", "warning", "this system does not report how much is free")
    least = min(limits, key=lambda name: limits[name])
    found = ", ".join(f"{decimal(amount)} free ({name})" for name, amount in limits.items())
    if limits[least] >= LITTLE_MEMORY:
        return Check("memory", "ok", found)
    fix = {
        "machine": "ps -e -o rss,args --sort=-rss | head # shows what could be closed",
        "control group": "docker run --memory=8g … # or the --mem of your scheduler",
        "ulimit -v": "ulimit -v unlimited",
    }[least]
    return Check("memory", "warning", f"{found}; a run may need {decimal(LITTLE_MEMORY)}", fix)


# ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

# The file operations of a run: write, sync, replace, lock.
_FILES = """
import os
name = sys.argv[1]
with open(name + ".new", "wb") as file:
    file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
os.replace(name + ".new", name)
with open(name, "rb") as file, open(name, "rb") as other:
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


def _existing(run_dir: Path) -> Path:
    """The directory, or its nearest existing parent."""
    return next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if os.path.exists(path))


def _run_directory(run_dir: Path) -> Check:
    """Try the file operations of a run in a temporary directory."""
    name = "run directory"
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=_existing(run_dir)) as folder:
            locks = ask(_FILES, str(Path(folder) / "file"))["locks"]
    except (OSError, BrokenError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        return Check(name, "failed", f"{run_dir} cannot be used: {words}", ELSEWHERE, ALL)
    if locks:
        return Check(name, "ok", f"{run_dir} can be written to and locked", needed_for=ALL)
    found = f"no locks in {run_dir}: on this file system, starting the same run twice cannot be prevented"
    return Check(name, "warning", found, ELSEWHERE, ALL)


def _disk(run_dir: Path) -> Check:
    least, fix = shutil.disk_usage(_existing(run_dir)).free, ELSEWHERE
    found = f"{decimal(least)} free"
    if (largest := ulimit("RLIMIT_FSIZE")) is not None:
        found += f", but no file may be larger than {decimal(largest)} (ulimit -f)"
        least, fix = min((least, fix), (largest, "ulimit -f unlimited"))
    if least < NO_DISK:
        return Check("disk", "failed", f"{found}; the smallest run needs {decimal(NO_DISK)}", fix, ALL)
    if least < LITTLE_DISK:
        return Check("disk", "warning", f"{found}; a long run may need {decimal(LITTLE_DISK)}", fix, ALL)
    return Check("disk", "ok", found, needed_for=ALL)


# ── simulators ────────────────────────────────────────────────────────────────────────────────────────────────────────

_CARTPOLE = """
from dm_control import suite
suite.load("cartpole", "swingup").reset()
"""

_PONG = """
from maskrl.envs import Atari
env = Atari(task="pong").make(seed=0, training=True)
env.reset()
for _ in range(10):
    env.step(0)
"""

_FRAME = """
from maskrl.envs import DMControl
from maskrl.envs.gl import NoBackendError, choose_gl
try:
    answer["renderer"] = choose_gl().renderer
except NoBackendError as error:
    raise SystemExit(*error.failures.values())
DMControl(task="cartpole-swingup", action_repeat=1).make(seed=0, training=True).reset()
"""


def _opengl(asked: str) -> Check:
    """Check whether the backend that a run would choose can draw; tries all. `asked`: the value of MUJOCO_GL."""
    from maskrl.envs.gl import PACKAGES  # imported late: it needs numpy and Gymnasium, which are known to work by now

    words, fixes = [], {}
    for backend, package in PACKAGES.items():
        try:
            words.append(f"{backend} draws ({ask(_FRAME, settings={'MUJOCO_GL': backend})['renderer']})")
        except BrokenError as error:
            words.append(f"{backend} does not draw: {error}")
            bound = "PYOPENGL_PLATFORM" in str(error)  # PyOpenGL is bound to another backend
            fixes[backend] = "unset PYOPENGL_PLATFORM" if bound else f"apt install {package}"
    found, drawing = "; ".join(words), PACKAGES.keys() - fixes
    if asked in drawing or (drawing and not asked):
        return Check("OpenGL", "ok", found, needed_for=("dmcontrol",))
    first = next(iter(fixes.values()))
    fix = "unset MUJOCO_GL" if drawing else fixes.get(asked, f"unset MUJOCO_GL && {first}" if asked else first)
    return Check("OpenGL", "failed", f"MUJOCO_GL={asked}; {found}" if asked else found, fix, ("dmcontrol",))
