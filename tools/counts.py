"""The long counts of docs/reliability.md: kills, fault sequences and fuzz cases.

    python tools/counts.py           write the sums of results/reliability.json into docs/reliability.md
    python tools/counts.py --check   fail if the page has other sums

A long count is made in slices. Every slice has a seed, and the file has its counts: {what: {slice: {name: {counter: number}}}}.
A slice that is repeated replaces its earlier counts, so that nothing is counted twice. Slices may run at the same time.
"""

import argparse
import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE, PAGE = ROOT / "results" / "reliability.json", ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- written by tools/counts.py -->\n", "<!-- end -->\n"
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")

Counts = Mapping[str, Mapping[str, int]]  # name of a recipe or a fuzz target → counter → number


def keep(what: str, part: str, counts: Counts, file: Path = FILE) -> None:
    """Write the counts of a slice into the file, in place of its earlier ones. A kill leaves the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    folder, aside = os.open(file.parent, os.O_RDONLY), file.with_name(f"{file.name}.new")
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the file itself is replaced
        found = _slices(file)
        found.setdefault(what, {})[part] = {name: dict(each) for name, each in counts.items()}
        aside.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(aside, file)
    finally:
        os.close(folder)


def sums(what: str, file: Path = FILE) -> dict[str, Counter[str]]:
    """The sums over all slices, by name."""
    total: dict[str, Counter[str]] = {}
    for part in _slices(file).get(what, {}).values():
        for name, counts in part.items():
            total.setdefault(name, Counter()).update(counts)
    return total


def _slices(file: Path) -> dict[str, dict[str, Counts]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def kills_of(counts: Mapping[str, int]) -> int:
    """The signals that ended a process."""
    return sum(counts.get(name, 0) for name in SIGNALS)


def page(file: Path = FILE) -> str:
    """The tables."""
    kills, sequences, fuzz = (sums(what, file) for what in ("kills", "sequences", "fuzz"))
    columns = ["kills", *SIGNALS, "runs", "differences"]
    rows = [[name, {"kills": kills_of(each), **each}] for name, each in sorted(kills.items())]
    total = [["all", sum((Counter(each) for _, each in rows), Counter())]] if rows else []
    all_kills = sum(map(kills_of, kills.values()))
    faults = sorted({name for each in sequences.values() for name in each} - {"sequences"})
    all_sequences = sum(each["sequences"] for each in sequences.values())
    cases = sum(each["cases"] for each in fuzz.values())
    by_agent = [[fault, {name: sequences[name][fault] for name in sequences}] for fault in faults]
    return "\n\n".join(
        [
            f"**{all_kills:,} kills** of real runs by mixed signals (`make kills`), each run compared with an uninterrupted one:",
            _table("run", columns, [*rows, *total]),
            f"**{all_sequences:,} fault sequences** with real processes (`make sequences`); the first loss would end the count:",
            _table("fault", sorted(sequences), by_agent),
            f"**{cases:,} fuzz cases** (`make fuzz`), guided by coverage; any error that is not ours is a crash:",
            _table("reader", ["cases", "crashes"], [[name, each] for name, each in sorted(fuzz.items())]),
        ]
    )


def _table(first: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    columns, rows = list(columns), list(rows)
    if not rows:
        return "No slices yet."
    lines = [f"| {first} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name, counts in rows:
        assert isinstance(counts, Mapping)
        lines.append(f"| {name} | {' | '.join(f'{counts.get(column, 0):,}' for column in columns)} |")
    return "\n".join(lines)


def with_tables(text: str, tables: str) -> str:
    """A page with these tables between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(
            f"{PAGE.name} must have a line {BEGIN.strip()} and, below it, a line {END.strip()}: put them back."
        )
    return f"{before}{BEGIN}\n{tables}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    new = with_tables(text, page())
    if not check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != text:
        raise SystemExit(f"{PAGE.name} has other sums than {FILE.name}: run tools/counts.py.")


if __name__ == "__main__":
    main()
