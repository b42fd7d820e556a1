"""Choose the OpenGL backend for MuJoCo. Do so before importing dm_control, which reads the choice once."""

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import NamedTuple

from maskrl.envs.base import require_extra

# In order of preference: a headless GPU (or Mesa's software renderer), software only, a window system.
PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6", "glfw": "libglfw3 xvfb"}  # Debian packages, for apt

# Some backends can be imported and even create a context although they cannot draw, and some crash. So another process tries to
# draw a white ball with each.
_DRAW = """
import mujoco
from OpenGL import GL
model = mujoco.MjModel.from_xml_string('<mujoco><worldbody><light pos="0 0 3"/><geom size="1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 16, 16) as renderer:
    renderer.update_scene(data)
    if not renderer.render().any():
        raise SystemExit("it draws, but everything is black")
    print(*(GL.glGetString(name).decode() for name in (GL.GL_VENDOR, GL.GL_RENDERER, GL.GL_VERSION)))
"""
_PROVEN = "MASKRL_GL"  # backend and renderer that a parent process has tried, so that children need not try again
_SECONDS = 60  # the first start from a network disk is slow


class GL(NamedTuple):
    """The backend and renderer of the frames."""

    backend: str  # "egl", "osmesa" or "glfw"
    renderer: (
        str  # vendor, device and driver, such as "Mesa llvmpipe (LLVM 15.0.6, 256 bits) 4.5 (Core Profile) Mesa 22.3.6"
    )


class NoBackendError(RuntimeError):
    """No backend can draw. The message is for the user; `failures` has the error of each backend that was tried."""

    def __init__(self, words: str, failures: dict[str, str]) -> None:
        super().__init__(words)
        self.failures = failures


@cache
def choose_gl() -> GL:
    """Choose and try the backend of this process: MUJOCO_GL if it is set, otherwise the first of egl, osmesa, glfw that draws.

    Sets MUJOCO_GL to the choice, for dm_control and for child processes.
    """
    require_extra("dm_control", "dmcontrol")
    _load_triton()
    # MuJoCo accepts "EGL" for "egl", dm_control does not.
    asked, imported = os.environ.get("MUJOCO_GL", "").strip().lower(), _backend_of_dm_control()
    if imported and asked in PACKAGES and asked != imported:
        raise RuntimeError(
            f"MUJOCO_GL={asked}, but dm_control was imported before that was set and uses {imported} until the end "
            "of the process. Set MUJOCO_GL before Python starts, or import dm_control after calling choose_gl()."
        )
    fixed = asked or imported
    backend, _, renderer = os.environ.get(_PROVEN, "").partition(" ")
    if backend and backend == fixed:
        return GL(backend, renderer)
    failures = {}
    for backend in [fixed] if fixed else PACKAGES:
        draws, words = _try(backend)
        if draws:
            os.environ |= {"MUJOCO_GL": backend, _PROVEN: f"{backend} {words}"}
            return GL(backend, words)
        failures[backend] = words
    raise NoBackendError(_nothing_draws(failures, asked, imported), failures)


def _load_triton() -> None:
    """Load triton, a part of torch's CUDA build that the first optimiser imports, before Mesa.

    Both contain an LLVM. If Mesa's software renderer has loaded its own (15, Debian 12), importing triton crashes.
    """
    with suppress(ImportError):
        import_module("triton")


def _backend_of_dm_control() -> str:
    """The backend that dm_control uses: "" before its import, "off" if it found none."""
    module = sys.modules.get("dm_control._render")
    return str(module.BACKEND or "off") if module else ""


def _try(backend: str) -> tuple[bool, str]:
    """Whether a backend draws, and its vendor and device, or the last line of its error."""
    command, settings = [sys.executable, "-c", _DRAW], {**os.environ, "MUJOCO_GL": backend}
    try:
        trial = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return False, f"no picture within {_SECONDS} seconds"
    draws = trial.returncode == 0
    lines = (trial.stdout if draws else trial.stderr).strip().splitlines()
    return draws, lines[-1] if lines else f"stopped without a message, exit status {trial.returncode}"


def _nothing_draws(failures: dict[str, str], asked: str, imported: str) -> str:
    lines = [f"  {backend}: {words}" for backend, words in failures.items()]
    if asked:
        head = f"MUJOCO_GL={asked} does not draw here"
        advice = f"Unset it to have one of {', '.join(PACKAGES)} chosen, or"
    elif imported:
        head = f"dm_control was imported before a backend was chosen, and its own, {imported}, does not draw here"
        advice = "Call choose_gl() before importing dm_control, or"
    else:
        head, advice = "No OpenGL backend draws here", "On Debian or Ubuntu,"
    packages = ", ".join(
        f"{package.replace(' ', ' and ')} for {backend}{' (then run under xvfb-run)' if 'xvfb' in package else ''}"
        for backend, package in PACKAGES.items()
    )
    return "\n".join([f"{head}:", *lines, f"{advice} install one of: {packages}."])
