"""The results of benchmarks, and their text."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from maskrl.bench.measure import Measured
from maskrl.recipes.schema import Recipe
from maskrl.words import size

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """Values by name: numbers, words, `Measured`, mappings such as seconds_by_part, or tables (lists of rows).

    A name contains the unit: seconds, bytes, flop, share.
    """

    values: Row  # the object that `--json` prints
    notes: Sequence[str] = ()  # sentences

    def json(self) -> str:
        return json.dumps(self.values, indent=2, default=asdict)

    def text(self) -> str:
        """The text: facts, a table for each list, one for all mappings with the same key (`…_by_part`), then the notes."""
        facts, tables, by = Row(), list[list[Row]](), defaultdict[str, dict[str, Row]](dict)
        for name, value in self.values.items():
            column, is_mapping, thing = name.partition("_by_")
            if is_mapping:
                for part, inner in value.items():
                    by[thing].setdefault(part, {thing: part})[column] = inner
            elif isinstance(value, list) and value and isinstance(value[0], Mapping):
                tables.append(value)
            elif value not in ([], {}, None):
                facts[name] = value
        width = max((len(name) for name in facts), default=0)
        lines = "\n".join(f"{name.replace('_', ' '):<{width}}  {words(name, value)}" for name, value in facts.items())
        tables = [list(rows.values()) for rows in by.values()] + tables
        blocks = [lines, *(table(rows) for rows in tables), "\n".join(self.notes)]
        return "\n\n".join(block for block in blocks if block)


def named(recipe: Recipe) -> Row:
    """The first values of a result about a recipe."""
    return {"recipe": recipe.name, "profile": recipe.profile, "method": recipe.method}


def table(rows: Sequence[Row]) -> str:
    """A text table, words left-aligned, numbers right-aligned. Empty columns are left out."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    columns = []
    for name in names:
        cells = [name.replace("_", " "), *(words(name, row.get(name)) for row in rows)]
        is_text = all(isinstance(row.get(name), str | Mapping | None) for row in rows)
        width = max(map(len, cells))
        columns.append([cell.ljust(width) if is_text else cell.rjust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def words(name: str, value: Any) -> str:
    """A value as text, in the unit of its name."""
    match value:
        case None:
            return "–"
        case Measured():
            low, high = words(name, value.low), words(name, value.high)
            return f"{words(name, value.median)} ({low} – {high})"
        case Mapping():
            return ", ".join(f"{part} {words('', inner)}" for part, inner in value.items())
        case list():
            return ", ".join(words(name, inner) for inner in value)
        case float() | int():
            return _number(name, value)
    return str(value)


def _number(name: str, value: float) -> str:
    if "share" in name:
        return f"{100 * value:.3g}%"
    if "bytes" in name:
        return size(round(value))
    if "flop" in name:
        return f"{value / 1e9:.4g} GFLOP{'/s' if 'per_second' in name else ''}"
    if "seconds" in name:
        return f"{1000 * value:.4g} ms" if value < 10 else f"{value:.4g} s"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"
