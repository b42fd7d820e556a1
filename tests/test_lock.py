"""requirements.lock has what constraints.txt has, by digest, and no address."""

import re
import sys
from pathlib import Path

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
