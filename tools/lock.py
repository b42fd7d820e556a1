"""Write requirements.lock: what `make setup` installs besides torch, by version and by the digest of every file of that version.

    python tools/lock.py INDEX       INDEX: the address of a package index with the simple interface (PEP 503)

Versions are those of constraints.txt. torch is left out, as its build differs by machine: the constraints have its version.
"""

import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).parents[1]
BY_ITSELF = {"torch", "atheris"}  # atheris: for fuzzing by hand, see fuzz/
# What needs labmaze, which has no wheel for Python 3.13: see pyproject.toml.
UNTIL_312 = {"dm_control", "labmaze", "mujoco"}
HEAD = "# Written by tools/lock.py from constraints.txt: names, versions, and the SHA-256 of every file of a version.\n"


class Links(HTMLParser):
    """The addresses on a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attributes if tag == "a" and name == "href" and value]


def digests(index: str, name: str, version: str) -> list[str]:
    """Of all files of a version."""
    page = Links()
    project = re.sub(r"[-_.]+", "-", name).lower()
    with urllib.request.urlopen(f"{index.rstrip('/')}/{project}/", timeout=60) as answer:
        page.feed(answer.read().decode())
    # A file's name is project-version-… for a wheel and project-version.tar.gz for a source.
    pattern = re.compile(
        rf"{project.replace('-', '[-_.]+')}-{re.escape(version)}(-.*\.whl|\.tar\.gz|\.zip)", re.IGNORECASE
    )
    found = set()
    for link in page.found:
        address, digest = urldefrag(link)
        if pattern.fullmatch(unquote(address.rpartition("/")[2])) and digest.startswith("sha256="):
            found.add(digest.removeprefix("sha256="))
    return sorted(found)


def entry(index: str, line: str) -> str:
    """A line of constraints.txt with its digests."""
    name, version, marker = re.fullmatch(r"([\w.-]+)==([^\s;]+)\s*(?:;\s*(.*))?", line).groups()  # type: ignore[union-attr]
    found = digests(index, name, version)
    if not found:
        raise SystemExit(f"{name} {version}: the index has no file of it with a digest.")
    marker = 'python_version < "3.13"' if name in UNTIL_312 else marker
    head = f"{name}=={version}" + (f" ; {marker}" if marker else "")
    return " \\\n".join([head, *(f"    --hash=sha256:{digest}" for digest in found)])


def main(index: str) -> None:
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pinned = [line for line in lines if line and not line.startswith("#") and line.partition("==")[0] not in BY_ITSELF]
    with ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(lambda line: entry(index, line), pinned))
    (ROOT / "requirements.lock").write_text(HEAD + "\n".join(entries) + "\n")
    print(f"requirements.lock: {len(entries)} packages")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
