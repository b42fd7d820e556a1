"""Fuzz several readers, and keep the counts for docs/reliability.md in results/reliability.json (tools/counts.py).

python fuzz/count.py --runs 170000 --seed 1                   all readers: a slice of the count
python fuzz/count.py csv recipe --runs 170000 --seed 1        some of them, such as beside others on another core
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools"))
import counts  # noqa: E402

from targets import TARGETS  # noqa: E402


def cases(target: str, words: list[str]) -> tuple[int, int]:
    """Fuzz one reader: the number of cases, and the exit code."""
    command = [sys.executable, str(HERE / "run.py"), target, *words]
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    if process.returncode != 0:
        sys.stderr.write(process.stderr[-5000:])
    found = re.findall(r"stat::number_of_executed_units:\s*(\d+)", process.stderr)
    if not found:
        raise SystemExit(
            f"The fuzzer of {target} ended with exit code {process.returncode} and without its count of cases. "
            f"Its count is not kept. Run it alone to see why: python fuzz/run.py {target}"
        )
    return int(found[-1]), process.returncode


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", default=[*TARGETS], metavar="TARGET")
    parser.add_argument("--runs", type=int, default=170_000, help="cases of each reader")
    parser.add_argument("--seconds", type=int, default=0, help="stop each after this time; 0: never")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="do not keep the counts")
    asked = parser.parse_args()
    failed = False
    for target in asked.targets:
        words = [f"--runs={asked.runs}", f"--seconds={asked.seconds}", f"--seed={asked.seed}"]
        number, code = cases(target, words)
        print(f"{target}: {number:,} cases, exit code {code}", flush=True)
        if not asked.dry:
            counts.keep("fuzz", f"{target}, seed {asked.seed}", {target: {"cases": number, "crashes": int(code != 0)}})
        failed |= code != 0
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
