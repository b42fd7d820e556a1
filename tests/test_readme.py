"""What the README and the examples show is run as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_every_python_block_of_the_readme_runs(block: str):
    exec(compile(block, "README.md", "exec"), {})


def test_the_plug_in_example_is_five_lines():
    code = [line for line in BLOCKS[0].splitlines() if line and not line.startswith(("import", "from"))]
    assert len(code) == 5


def test_every_make_command_of_the_readme_exists():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE)) <= set(targets)


def test_every_file_that_the_documents_link_to_exists():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_the_own_loop_example_raises_the_cosine_of_masked_and_unmasked_latents():
    command = [sys.executable, ROOT / "examples" / "own_loop.py", "--updates", "60"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after = map(float, re.search(r"mean latent removed\s+(\S+) -> (\S+)", printed).groups())
    assert after > before + 0.3
