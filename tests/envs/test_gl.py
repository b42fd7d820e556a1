"""A backend is chosen once per process, so every test asks a process of its own."""

import os
import subprocess
import sys
from functools import cache

from builders import require_drawing

require_drawing()


@cache
def ask(script, **environment):
    """What a fresh Python prints, or the last paragraph of its complaint."""
    settings = {
        name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "MASKRL_GL", "PYOPENGL_PLATFORM")
    }
    code = f"from maskrl.envs import gl\n{script}"
    done = subprocess.run([sys.executable, "-c", code], env=settings | environment, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()


CHOICE = "print(gl.choose_gl().backend)"


def test_the_first_backend_that_draws_is_chosen_and_left_for_dm_control():
    answer = ask(
        "gl.PACKAGES = {'bogus': 'no such package', **gl.PACKAGES}\n"
        "import os; chosen = gl.choose_gl()\n"
        "from dm_control import _render\n"
        "print(chosen.backend, os.environ['MUJOCO_GL'], _render.BACKEND, len(chosen.renderer) > 0)"
    )
    chosen = ask(CHOICE)
    assert chosen in ("egl", "osmesa", "glfw")
    assert answer == f"{chosen} {chosen} {chosen} True"


def test_when_nothing_draws_every_attempt_is_shown_in_order_with_the_packages_to_install():
    answer = ask(f"gl.PACKAGES = {{'zig': 'libzig', 'zag': 'libzag'}}\n{CHOICE}")
    assert "No OpenGL backend draws here" in answer
    zig, zag = (
        answer.index(f"{name}: RuntimeError: invalid value for environment variable") for name in ("zig", "zag")
    )
    assert zig < zag
    assert answer.endswith("On Debian or Ubuntu, install one of: libzig for zig, libzag for zag.")


def test_a_backend_that_the_user_set_is_tried_alone_and_never_replaced():
    answer = ask(CHOICE, MUJOCO_GL="bogus")
    assert "MUJOCO_GL=bogus does not draw here:\n  bogus: RuntimeError: invalid value" in answer
    assert "Unset it to have one of egl, osmesa, glfw chosen" in answer
    assert "libegl1 for egl, libosmesa6 for osmesa, libglfw3 and xvfb" in answer


def test_a_backend_that_the_user_set_and_that_draws_is_kept():
    chosen = ask(CHOICE)
    assert ask(CHOICE, MUJOCO_GL=chosen.upper()) == chosen


def test_a_child_trusts_what_its_parent_has_tried_and_nothing_else():
    child = "import subprocess, sys; gl.choose_gl()\n"
    child += "code = 'from maskrl.envs import gl; gl._try = None; print(*gl.choose_gl())'\n"
    child += "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout)"
    assert ask(child) == ask("print(*gl.choose_gl())")
    answer = ask(CHOICE, MUJOCO_GL="bogus", MASKRL_GL="egl Mesa")
    assert "MUJOCO_GL=bogus does not draw here" in answer


def test_dm_control_imported_too_early_with_another_backend_is_reported():
    script = f"from dm_control import _render\nimport os; os.environ['MUJOCO_GL'] = 'osmesa'\n{CHOICE}"
    answer = ask(script, MUJOCO_GL=ask(CHOICE).replace("osmesa", "egl"))
    assert "MUJOCO_GL=osmesa, but dm_control was imported before that was set and uses" in answer


def test_dm_control_imported_early_with_a_backend_that_does_not_draw_is_reported():
    answer = ask(f"import os; from dm_control import _render\ndel os.environ['MUJOCO_GL']\n{CHOICE}", MUJOCO_GL="off")
    assert "dm_control was imported before a backend was chosen, and its own, off, does not draw here" in answer


def test_triton_is_loaded_before_anything_of_gl_and_need_not_exist(tmp_path):
    """The CUDA build is not installed here, so a triton of one line stands for it and shows what was loaded before."""
    (tmp_path / "triton.py").write_text("import sys\nprint(any(name.startswith('OpenGL') for name in sys.modules))\n")
    assert ask(CHOICE, PYTHONPATH=str(tmp_path)).split() == ["False", ask(CHOICE)]
    (tmp_path / "triton.py").write_text("raise ImportError('no libcuda')\n")
    assert ask(f"{CHOICE}  # again", PYTHONPATH=str(tmp_path)) == ask(CHOICE)
