"""Format durations, sizes and numbers for people."""

from collections.abc import Iterable


def duration(seconds: float) -> str:
    """Such as 5 s, 3 min 20 s, 2 h 05 min, 3 d 04 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def number(value: float) -> str:
    """At least three significant digits, without an exponent for usual scores and losses."""
    size = abs(value)
    if size >= 1000 or (size and size < 0.001):
        return f"{value:,.0f}" if 1000 <= size < 1e6 else f"{value:.2e}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def size(count: int) -> str:
    """Bytes in a suitable unit."""
    amount = float(count)
    units = ["B", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount /= 1000
        del units[0]
    unit = units[0]
    return f"{amount:,.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"


def count(number: int, noun: str) -> str:
    """Such as 1 episode, 2,000 episodes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: 1, 2, 3 and 7 give "1–3, 7"."""
    found: list[list[int]] = []
    for value in numbers:
        if found and value == found[-1][-1] + 1:
            found[-1].append(value)
        else:
            found.append([value])
    shown_ranges = [str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in found]
    return ", ".join(shown_ranges[:12]) + (", …" if len(shown_ranges) > 12 else "")
