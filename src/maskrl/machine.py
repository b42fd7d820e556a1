"""The cores, memory and shell limits of this process. Needs only the standard library."""

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def cores_allowed(root: Path = Path("/")) -> int:
    """The cores that this process may use: those of its affinity, or fewer if its control group has a CPU quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    for group in control_groups("cpu", root):
        with suppress(OSError, ValueError):
            if (group / "cpu.max").exists():
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:  # ValueError: "max"
                cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores


def physical_cores(root: Path = Path("/")) -> int:
    """The physical cores of the affinity: logical cores of the same physical one share its arithmetic units."""
    allowed = os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))
    cpus = root / "sys/devices/system/cpu"
    whole = set[str]()
    for number in allowed:
        try:
            whole.add((cpus / f"cpu{number}/topology/thread_siblings_list").read_text().strip())
        except OSError:  # not reported by the system
            whole.add(str(number))
    return len(whole)


def processor(root: Path = Path("/")) -> str | None:
    """The model of the processor; None if unknown."""
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip() or None
    return None


def free_memory() -> int | None:
    """The bytes that this process can still allocate; None if unknown."""
    return min(memory_limits().values(), default=None)


def memory_limits(root: Path = Path("/")) -> dict[str, int]:
    """The bytes that this process can still allocate, by limit: the machine, its control group, `ulimit -v`."""
    limits = {}
    with suppress(OSError, ValueError, AttributeError):
        limits["machine"] = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):  # better on Linux: counts the file cache as free
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits["machine"] = int(line.split()[1]) * 1024
    for group in control_groups("memory", root):
        for limit, usage, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # ValueError: "max"
                allowed, used = int((group / limit).read_text()), int((group / usage).read_text())
                statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                left = max(0, allowed - used + int(statistics.get(cached, 0)))
                if allowed < 2**60:  # version 1 uses a large number for "no limit"
                    limits["control group"] = min(left, limits.get("control group", left))
    if (addresses := ulimit("RLIMIT_AS")) is not None:
        with suppress(OSError):
            addresses -= int((root / "proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limits["ulimit -v"] = max(0, addresses)
    return limits


def ulimit(name: str) -> int | None:
    """A limit of the shell, such as RLIMIT_FSIZE; None if there is none."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """The directories of this process's control group and its parents, each of which may set a limit. Versions 1 and 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            # In a container the path may be the host's; only its root is visible there.
            yield from (mount / above.relative_to("/") for above in (Path(path), *Path(path).parents))


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends. The parent's starting thread must live as long as this process."""
    parent = os.getppid()
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG of prctl.h
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the signal was set
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
