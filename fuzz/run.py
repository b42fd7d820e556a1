"""Fuzz a reader with coverage as the guide (atheris): `pip install 'maskrl[fuzz]'`, then

    python fuzz/run.py TARGET --seconds 600      TARGET: see targets.py; its last lines have the count

What it finds is left as fuzz/crash-…: put it into fuzz/corpus/TARGET once it is mended, and the tests replay it. Inputs that
reached new code are kept in fuzz/found/TARGET, which is not in the repository.
"""

import argparse
import sys
from pathlib import Path

import atheris

HERE = Path(__file__).parent

with atheris.instrument_imports(include=["maskrl"]):
    sys.path.insert(0, str(HERE))
    import targets


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=targets.TARGETS)
    parser.add_argument("--runs", type=int, default=-1, help="stop after this many cases; -1: never")
    parser.add_argument("--seconds", type=int, default=600, help="stop after this time; 0: never")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found, corpus = HERE / "found" / asked.target, HERE / "corpus" / asked.target
    for folder in (found, corpus):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(targets.seeds()[asked.target]):
        (found / f"seed-{number}").write_bytes(seed)
    options = [f"-runs={asked.runs}", f"-seed={asked.seed}", "-max_len=8192", "-timeout=30", "-rss_limit_mb=4000"]
    options += [f"-max_total_time={asked.seconds}", f"-artifact_prefix={HERE}/", "-print_final_stats=1", "-verbosity=0"]
    targets.compute_once()
    atheris.Setup([sys.argv[0], *options, str(found), str(corpus)], targets.TARGETS[asked.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
