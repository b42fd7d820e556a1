"""Every breakage is a real one, made for a fresh Python: a package that is not what it should be, a limit, a bad path."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import namedtuple
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from maskrl import doctor
from maskrl.cli.doctor import as_dict, show
from maskrl.doctor import BrokenError, Check, ask, requirements, verdict, works
from maskrl.machine import cores_allowed, memory_limits


def diagnosed(part, *, site=None, limits=None, **environment):
    """The JSON of some checks in a fresh Python, with packages of ours before the real ones, and under limits."""
    settings = {
        name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "MASKRL_GL", "PYOPENGL_PLATFORM")
    }
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, [site and str(site), settings.get("PYTHONPATH")]))
    code = f"""
import json, resource
from itertools import islice
from pathlib import Path
from maskrl import doctor
from maskrl.cli.doctor import as_dict
for name, limit in {limits or {}}.items():
    resource.setrlimit(name, (limit, limit))
print(json.dumps(as_dict(list({part}))))
"""
    done = subprocess.run([sys.executable, "-c", code], env=settings | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer | {"checks": {check["name"]: check for check in answer["checks"]}}


def package(site, name, code, files=()):
    """A package whose import runs this code."""
    folder = site / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(code)
    for file in files:
        (folder / file).touch()
    return folder


def installed(site, name, version):
    """The record that pip would have left."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


# ── trials ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trial_answers_whatever_else_is_printed():
    script = "print('a banner'); answer['words'] = sys.argv[1:]; print('no end of line', end='')"
    assert ask(script, "a b") == {"words": ["a b"]}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("import os; print('why', file=sys.stderr, flush=True); os.abort()", "killed by SIGABRT: why"),
        ("{}['key']", "KeyError: 'key'"),
        ("raise SystemExit('it is black')", "it is black"),
        ("import os; os._exit(3)", "stopped without a message, exit status 3"),
        ("import os; os._exit(0)", "stopped without a message, exit status 0"),
        ("print('not JSON', flush=True); import os; os._exit(0)", "stopped without a message, exit status 0"),
    ],
)
def test_the_end_of_a_trial_is_told_in_a_line(script, words):
    with pytest.raises(BrokenError, match=f"^{words}$"):
        ask(script)


@pytest.mark.slow
def test_a_trial_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    note = tmp_path / "pid"
    script = f"""
import pathlib, subprocess, time
pathlib.Path({str(note)!r}).write_text(str(subprocess.Popen(["sleep", "60"]).pid))
time.sleep(60)
"""
    began = time.monotonic()
    with pytest.raises(BrokenError, match="no answer within 2 seconds"):
        ask(script, seconds=2)
    assert time.monotonic() - began < 20
    state = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(50):  # whoever inherits it may take a moment to bury it
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")


def test_a_trial_sees_what_we_see_and_nothing_of_the_current_folder(tmp_path, monkeypatch):
    package(tmp_path / "here", "oddity", "where = 'here'")
    package(tmp_path / "there", "oddity", "where = 'there'")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), str(tmp_path / "there")])
    assert ask("import oddity; answer['where'] = oddity.where") == {"where": "there"}


def test_the_doctor_imports_nothing_that_could_break_it():
    code = "import sys, maskrl.doctor; print([m for m in ('torch', 'numpy', 'gymnasium') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# ── versions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_ranges_are_those_of_the_package():
    wanted = [line.partition(";")[0].replace("-", "_") for line in requirements("dmcontrol")]
    assert [re.split("[<>=,]+", line)[0].strip() for line in wanted] == ["dm_control", "mujoco"]
    assert all(re.search(r">=[\d.]+", line) and re.search(r"<[\d.]+", line) for line in wanted)
    names = {re.split(r"[^\w-]", line)[0] for line in requirements()}
    assert {"torch", "numpy", "gymnasium", "pydantic"} <= names
    assert "mujoco" not in names


def test_an_extra_that_is_not_there_is_missing_and_breaks_nothing():
    check = doctor._extra("atari", "no_such_module", "")
    assert (check.state, check.fix) == ("missing", "pip install 'maskrl[atari]'")
    judged = verdict([check])
    assert works(judged)
    assert [family.state for family in judged.values()] == ["ready", "ready", "missing"]


def test_an_extra_without_a_wheel_for_this_python_says_which_python_it_needs(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 13, 1))
    check = doctor._extra("dmcontrol", "no_such_module", "")
    assert "it needs Python <3.13" in check.found
    assert check.fix == "uv venv --python '<3.13' && uv pip install 'maskrl[dmcontrol]'"


def test_a_source_folder_that_is_not_installed_is_a_warning(monkeypatch):
    row = doctor._packages()
    assert row.state == "ok"
    assert f"Python {doctor.platform.python_version()}, maskrl " in row.found
    monkeypatch.setattr(doctor, "requirements", lambda: [])
    row = doctor._packages()
    assert (row.state, row.fix) == ("warning", "pip install -e .")


def test_a_broken_package_below_everything_is_one_row_and_its_dependents_are_not_asked(tmp_path):
    package(tmp_path, "numpy", "raise ImportError('libblas.so.3: cannot open shared object file')")
    package(tmp_path, "torch", "raise ImportError('numpy')")
    answer = diagnosed(f"doctor.examine(Path({str(tmp_path)!r}))", site=tmp_path)
    check = answer["checks"]["packages"]
    assert check["state"] == "failed"
    assert "libblas.so.3: cannot open shared object file" in check["found"]
    assert check["fix"].startswith("pip install --force-reinstall --no-deps ")
    assert "'numpy>=2.0'" in check["fix"]
    assert not {"dmcontrol", "atari"} & set(answer["checks"])
    assert not answer["works"]
    assert {family["state"] for family in answer["families"].values()} == {"broken"}


# ── torch ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

# As much of torch as a trial touches; what it computes is not the matter here.
TORCH = """
from unittest.mock import MagicMock
__version__, rand, nn, cuda, version = "9.9", MagicMock(), MagicMock(), MagicMock(), MagicMock(cuda="13.0")
cuda.is_available.return_value = {cuda}
cuda.get_device_name.return_value = "A [small] GPU"
def get_num_threads(): return {threads}
def convolution(*sizes, device):
    if device == "cuda" and {broken}: raise RuntimeError("no kernel image is available")
    return MagicMock()
nn.Conv2d = convolution
{more}
"""


def torch_like(site, *, cuda=False, threads=1, broken=False, more=""):
    package(site, "torch", TORCH.format(cuda=cuda, threads=threads, broken=broken, more=more))
    return diagnosed("[doctor._torch()]", site=site)


def test_torch_that_crashes_is_a_failed_row_with_the_command_to_install_it_again(tmp_path):
    package(tmp_path, "torch", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    answer = diagnosed("[doctor._torch()]", site=tmp_path)
    check = answer["checks"]["torch"]
    assert (check["state"], answer["works"]) == ("failed", False)
    assert "killed by SIGILL" in check["found"]
    assert check["fix"].startswith("pip install --force-reinstall --no-deps 'torch>=")


def test_more_threads_than_cores_is_a_warning_with_the_number_to_set(tmp_path):
    cores = cores_allowed()
    answer = torch_like(tmp_path, threads=cores + 1)
    assert answer["checks"]["torch"]["state"] == "warning"
    assert answer["checks"]["torch"]["fix"] == f"export OMP_NUM_THREADS={cores}"
    assert answer["works"]


def test_without_a_cuda_device_all_is_well(tmp_path):
    answer = torch_like(tmp_path)
    assert answer["checks"]["torch"]["state"] == "ok"
    assert "device: CPU" in answer["checks"]["torch"]["found"]
    assert answer["works"]


def test_a_cuda_device_is_named(tmp_path):
    check = torch_like(tmp_path, cuda=True)["checks"]["torch"]
    assert check["state"] == "ok"
    assert "device: A [small] GPU" in check["found"]


def test_a_cuda_device_that_does_not_compute_fails_as_a_run_would_use_it(tmp_path):
    answer = torch_like(tmp_path, cuda=True, broken=True)
    assert answer["checks"]["torch"]["state"] == "failed"
    assert "on cuda: no kernel image" in answer["checks"]["torch"]["found"]
    assert answer["checks"]["torch"]["fix"].startswith("export CUDA_VISIBLE_DEVICES= ")
    assert not answer["works"]


def test_a_driver_that_torch_complains_about_is_a_warning(tmp_path):
    answer = torch_like(tmp_path, more="import warnings; warnings.warn('CUDA: the driver is too old\\nmore words')")
    check = answer["checks"]["torch"]
    assert check["state"] == "warning"
    assert check["found"].endswith("; CUDA: the driver is too old")
    assert check["fix"].startswith("nvidia-smi")


# ── memory and cores ──────────────────────────────────────────────────────────────────────────────────────────────────


def machine(root, files):
    """A file system with what the kernel would tell."""
    for name, text in {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4000 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def group(path, limit, used, cached, *, old=False):
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    names = names if old else ("memory.max", "memory.current", "inactive_file")
    return {
        f"{path}/{names[0]}": f"{limit}\n",
        f"{path}/{names[1]}": f"{used}\n",
        f"{path}/memory.stat": f"anon 5\n{names[2]} {cached}\n",
    }


def test_the_memory_of_the_machine_counts_when_nothing_limits_it(tmp_path):
    assert memory_limits(machine(tmp_path, {})) == {"machine": 4000 * 1024}
    unlimited = group("sys/fs/cgroup", "max", 700, 0) | {"proc/self/cgroup": "0::/\n"}
    assert memory_limits(machine(tmp_path, unlimited)) == {"machine": 4000 * 1024}


def test_the_tightest_control_group_above_us_counts_and_what_it_caches_is_free(tmp_path):
    files = {"proc/self/cgroup": "0::/job/step\n"}
    files |= group("sys/fs/cgroup/job/step", 5000, 1000, 0) | group("sys/fs/cgroup/job", 4000, 3000, 500)
    assert memory_limits(machine(tmp_path, files))["control group"] == 4000 - 3000 + 500
    files |= group("sys/fs/cgroup/job/step", 5000, 4900, 0)
    assert memory_limits(machine(tmp_path, files))["control group"] == 5000 - 4900


def test_control_groups_of_version_1_count_too_even_if_a_container_sees_only_their_root(tmp_path):
    files = {"proc/self/cgroup": "4:memory:/docker/0123\n1:cpu,cpuacct:/docker/0123\n0::/\n"}
    files |= group("sys/fs/cgroup/memory", 3000, 1000, 200, old=True)
    assert memory_limits(machine(tmp_path, files))["control group"] == 2200
    files |= group("sys/fs/cgroup/memory", 2**63 - 4096, 1000, 200, old=True)
    assert "control group" not in memory_limits(machine(tmp_path, files))


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "50000 100000\n"},
        {
            "proc/self/cgroup": "1:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_a_quota_of_processor_time_is_rounded_up_to_cores(tmp_path, files):
    assert cores_allowed(machine(tmp_path, files)) == 1


@pytest.mark.parametrize("quota", ["max 100000", "900000000 100000"])
def test_without_a_quota_the_affinity_counts(tmp_path, quota):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota}
    assert cores_allowed(machine(tmp_path, files)) == len(os.sched_getaffinity(0))


def test_a_limit_of_addresses_is_a_warning_with_the_command_that_lifts_it():
    check = diagnosed("[doctor._memory()]", limits={resource.RLIMIT_AS: 10**9})["checks"]["memory"]
    assert check["state"] == "warning"
    assert check["fix"] == "ulimit -v unlimited"
    assert "free (ulimit -v)" in check["found"]


# ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_directory_that_works_is_left_as_it_was(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").touch()
    for run_dir in (there, there / "a" / "b"):
        check, disk = doctor._run_directory(run_dir), doctor._disk(run_dir)
        assert (check.state, disk.state) == ("ok", "ok")
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "file"]


@pytest.mark.parametrize("below", ["file/runs", "file"])
def test_a_run_directory_that_cannot_be_is_a_failure_for_every_recipe(tmp_path, below):
    (tmp_path / "file").write_text("kept")
    checks = [doctor._run_directory(tmp_path / below), doctor._disk(tmp_path / below)]
    assert [check.state for check in checks] == ["failed", "ok"]
    assert "cannot be used" in checks[0].found
    assert "--run-dir" in checks[0].fix
    assert {family.state for family in verdict(checks).values()} == {"broken"}
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("flock", ["pass", "raise OSError(37, 'No locks available')"])
def test_a_file_system_whose_locks_do_not_hold_is_a_warning(tmp_path, flock):
    (tmp_path / "fcntl.py").write_text(f"LOCK_EX, LOCK_NB = 2, 4\ndef flock(*_):\n    {flock}\n")
    answer = diagnosed(f"[doctor._run_directory(Path({str(tmp_path)!r}))]", site=tmp_path)
    assert answer["checks"]["run directory"]["state"] == "warning"
    assert "starting the same run twice cannot be prevented" in answer["checks"]["run directory"]["found"]
    assert answer["works"]


@pytest.mark.parametrize(
    ("limit", "states"), [(1000, ["failed", "failed"]), (50 * 10**6, ["ok", "failed"]), (10**9, ["ok", "warning"])]
)
def test_a_limit_of_file_sizes_is_said_with_the_command_that_lifts_it(tmp_path, limit, states):
    part = f"[check(Path({str(tmp_path)!r})) for check in (doctor._run_directory, doctor._disk)]"
    answer = diagnosed(part, limits={resource.RLIMIT_FSIZE: limit})
    assert [answer["checks"][name]["state"] for name in ("run directory", "disk")] == states
    assert answer["checks"]["disk"]["fix"] == "ulimit -f unlimited"
    assert answer["works"] == ("failed" not in states)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "state"), [(6 * 10**9, "ok"), (4 * 10**9, "warning"), (10**7, "failed")])
def test_a_disk_is_judged_by_its_free_room(tmp_path, monkeypatch, free, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(free))
    assert doctor._disk(tmp_path).state == state


# ── simulators ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_mujoco_that_dm_control_cannot_use_breaks_dmcontrol_and_nothing_else(tmp_path):
    pytest.importorskip("dm_control")
    package(tmp_path, "mujoco", "__version__ = '4.0.0'")
    installed(tmp_path, "mujoco", "4.0.0")
    answer = diagnosed(f"doctor.examine(Path({str(tmp_path)!r}))", site=tmp_path)
    check = answer["checks"]["dmcontrol"]
    assert check["state"] == "failed"
    assert "mujoco 4.0.0" in check["found"]
    assert "mujoco" in check["found"].partition("does not work: ")[2]  # what Python said
    assert check["fix"].startswith("pip install --force-reinstall --no-deps ")
    assert re.search(r"'mujoco[<>=\d.,]*<4[,']", check["fix"])
    assert {family: judged["state"] for family, judged in answer["families"].items()} == {
        "toy": "ready",
        "dmcontrol": "broken",
        "atari": "ready",
    }
    assert not answer["works"]
    assert not any(name.startswith("OpenGL") for name in answer["checks"])  # what draws cannot be known yet


def drawn(monkeypatch, *drawing, asked="", words="no display"):
    """The row about OpenGL on a machine where these backends draw."""

    def answer(script, settings):
        if settings["MUJOCO_GL"] not in drawing:
            raise BrokenError(words)
        return {"renderer": "Mesa"}

    monkeypatch.setattr(doctor, "ask", answer)
    return doctor._opengl(asked)


def test_one_backend_that_draws_is_enough(monkeypatch):
    row = drawn(monkeypatch, "osmesa")
    assert row.state == "ok"
    assert row.found == "egl does not draw: no display; osmesa draws (Mesa); glfw does not draw: no display"
    assert {family.state for family in verdict([row]).values()} == {"ready"}


def test_when_nothing_draws_dmcontrol_does_not_train(monkeypatch):
    row = drawn(monkeypatch)
    assert (row.state, row.fix) == ("failed", "apt install libegl1")
    judged = verdict([row])
    assert judged["dmcontrol"] == ("broken", ["OpenGL"])
    assert judged["toy"].state == "ready"


@pytest.mark.parametrize(
    ("asked", "drawing", "state", "fix"),
    [
        ("egl", ["egl"], "ok", ""),
        ("nonsense", ["egl"], "failed", "unset MUJOCO_GL"),
        ("osmesa", ["egl"], "failed", "unset MUJOCO_GL"),
        ("osmesa", [], "failed", "apt install libosmesa6"),
        ("nonsense", [], "failed", "unset MUJOCO_GL && apt install libegl1"),
    ],
)
def test_a_backend_that_the_user_asked_for_must_draw(monkeypatch, asked, drawing, state, fix):
    row = drawn(monkeypatch, *drawing, asked=asked)
    assert (row.state, row.fix) == (state, fix)


def test_a_backend_barred_by_a_variable_needs_no_package(monkeypatch):
    row = drawn(monkeypatch, words="The PYOPENGL_PLATFORM environment variable is set to 'x'")
    assert row.fix == "unset PYOPENGL_PLATFORM"


def test_a_game_whose_rom_is_gone_breaks_atari_alone(tmp_path):
    pytest.importorskip("ale_py")
    answer = diagnosed('[doctor._extra("atari", "ale_py", doctor._PONG)]', ALE_ROMS_DIR=str(tmp_path))
    assert answer["checks"]["atari"]["state"] == "failed"
    assert answer["checks"]["atari"]["fix"].startswith("pip install --force-reinstall --no-deps 'ale-py<")
    assert {family: judged["state"] for family, judged in answer["families"].items()} == {
        "toy": "ready",
        "dmcontrol": "ready",
        "atari": "broken",
    }


def test_a_game_that_does_not_play_breaks_atari_though_its_rom_is_there(tmp_path):
    pytest.importorskip("ale_py")
    package(tmp_path, "cv2", "raise ImportError('libGL.so.1: cannot open shared object file')")
    answer = diagnosed('[doctor._extra("atari", "ale_py", doctor._PONG)]', site=tmp_path)
    assert answer["checks"]["atari"]["state"] == "failed"
    assert "libGL.so.1: cannot open" in answer["checks"]["atari"]["found"]


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────────────

CHECKS = [
    Check("torch", "warning", "threads: 64, cores: 2", "export OMP_NUM_THREADS=2", ("toy", "dmcontrol", "atari")),
    Check("dmcontrol", "failed", "[red] 4.0.0", f"pip install {'x' * 150} 'mujoco[a]>=3.3.6,<4'", ("dmcontrol",)),
    Check("atari", "missing", "not installed", "pip install 'maskrl[atari]'", ("atari",)),
    Check("memory", "ok", "8.0 GB free"),
]


def test_every_fix_is_printed_in_one_piece_however_narrow_the_terminal():
    console = Console(file=StringIO(), width=60)
    assert show(iter(CHECKS), console) == CHECKS
    printed = console.file.getvalue()
    lines = [line.split() for line in printed.splitlines()]
    for check in CHECKS:
        place = next(place for place, words in enumerate(lines) if words[:2] == [check.name, check.state])
        assert (lines[place + 1][:1] == ["do"]) == bool(check.fix)
        assert printed.splitlines()[place + 1].endswith(check.fix)
    assert "[red] 4.0.0" in printed
    assert lines[-3:] == [
        ["toy", "would", "train"],
        ["dmcontrol", "would", "not", "train:", "see", "dmcontrol"],
        ["atari", "is", "not", "installed"],
    ]


def test_the_keys_of_the_json_are_these():
    answer = json.loads(json.dumps(as_dict(CHECKS)))
    assert list(answer) == ["maskrl", "works", "families", "checks"]
    assert answer["works"] is False
    assert answer["families"] == {
        "toy": {"state": "ready", "because": []},
        "dmcontrol": {"state": "broken", "because": ["dmcontrol"]},
        "atari": {"state": "missing", "because": ["atari"]},
    }
    for check in answer["checks"]:
        assert list(check) == ["name", "state", "found", "fix", "needed_for"]


@pytest.mark.slow
def test_the_whole_doctor_with_a_backend_that_does_not_exist(tmp_path):
    pytest.importorskip("dm_control")
    answer = diagnosed(f"doctor.examine(Path({str(tmp_path / 'runs')!r}))", MUJOCO_GL="nonsense", OMP_NUM_THREADS="1")
    checks = answer["checks"]
    head = ["packages", "torch", "memory", "run directory", "disk"]
    assert list(checks) == [*head, "dmcontrol", "OpenGL", "atari"]
    assert checks["torch"]["state"] == "ok"
    assert "threads: 1" in checks["torch"]["found"]
    assert checks["OpenGL"]["state"] == "failed"
    assert "unset MUJOCO_GL" in checks["OpenGL"]["fix"]
    assert answer["families"]["dmcontrol"] == {"state": "broken", "because": ["OpenGL"]}
    assert all(check["fix"] for check in checks.values() if check["state"] in ("failed", "warning"))
    assert list(tmp_path.iterdir()) == []
