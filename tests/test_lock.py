"""requirements.lock has what constraints.txt has, by digest, and no address. `maskrl licences` has the licence of each."""

import json
import re
import sys
from importlib import metadata
from pathlib import Path

from calling import called

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import lock  # noqa: E402


def test_the_lock_has_the_versions_of_the_constraints_and_a_digest_of_each():
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    wanted = {line.split()[0] for line in lines if line and not line.startswith("#")}
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())[1:]
    found = {entry.split()[0] for entry in entries}
    assert found == {line for line in wanted if line.partition("==")[0] not in lock.BY_ITSELF}, "run tools/lock.py"
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


def test_the_lock_names_no_index():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert "--index" not in text


def test_the_licences_of_all_that_maskrl_requires_are_listed():
    code, printed = called(["licences", "--json"])
    assert code == 0
    found = {re.sub(r"[-_.]+", "-", one["name"]).lower(): one["licence"] for one in json.loads(printed)}
    for line in metadata.requires("maskrl") or ():
        name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower()  # type: ignore[index]
        if next(iter(metadata.distributions(name=name)), None) is not None:
            assert found.get(name), name
    assert "MIT" in found["maskrl"]
    assert all(found.values())
