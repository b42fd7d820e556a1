"""What this machine lets a process use: cores, memory, and limits of the shell. The standard library alone."""

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
    """Cores that this process may use: those of its affinity, fewer if its control group has a quota of time."""
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
    """The physical cores of the affinity: two logical cores of one share its arithmetic units."""
    allowed = os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))
    cpus = root / "sys/devices/system/cpu"
    whole = set[str]()
    for number in allowed:
        try:
            whole.add((cpus / f"cpu{number}/topology/thread_siblings_list").read_text().strip())
        except OSError:  # the system does not tell
            whole.add(str(number))
    return len(whole)


def processor(root: Path = Path("/")) -> str | None:
    """The model of the processor, where the system tells."""
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "cpu model"):
                return value.strip() or None
    return None


def free_memory() -> int | None:
    """Bytes that this process can still take; None if the system does not tell."""
    return min(memory_limits().values(), default=None)


def memory_limits(root: Path = Path("/")) -> dict[str, int]:
    """Bytes that this process can still take, by what sets the limit: the machine, its control group, `ulimit -v`."""
    limits = {}
    with suppress(OSError, ValueError, AttributeError):
        limits["machine"] = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):  # better, on Linux: counts the cache of files as free
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
                if allowed < 2**60:  # version 1 has a number for "no limit"
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
    """The directories of our control group and those above it, each of which may set a limit. Versions 1 and 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            # In a container the path may be the host's, of which the container sees only the root.
            yield from (mount / above.relative_to("/") for above in (Path(path), *Path(path).parents))


def die_with_parent() -> None:
    """Have the system kill this process when the one that started it ends. The parent must not start it in a thread
    that ends before.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG of prctl.h
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the system knew
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
