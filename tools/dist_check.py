"""Install what `make dist` built into an empty environment and use it: `python tools/dist_check.py DIST`.

The environment gets the built file and its dependencies at the tested versions, nothing of the clone. There, outside the clone, it
lists the recipes, trains a toy for some updates and evaluates it.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = (
    "budget.frames=120",
    "agent.warmup_decisions=60",
    "evaluation.every=60",
    "evaluation.episodes=1",
    "agent.batch_size=8",
)
COMMANDS = (
    ("--version",),
    ("recipes", "list"),
    ("train", "toy/reach", *SHORT, "--run-dir", "run", "--log", "none"),
    ("evaluate", "run", "--episodes", "1"),
)


def check(built: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/env", with_pip=True)
        python = Path(folder) / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(built)]
        subprocess.run([python, *install], check=True)
        for words in COMMANDS:
            print(f"  maskrl {' '.join(words)}", flush=True)
            subprocess.run([python, "-m", "maskrl", *words], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        found = subprocess.run(
            [python, "-c", "import maskrl; print(maskrl.__version__, maskrl.__file__)"],
            check=True,
            cwd=folder,
            capture_output=True,
            text=True,
        ).stdout
        assert str(ROOT) not in found, found
        print(f"{built.name} on Python {sys.version.split()[0]}: works, {found.split()[0]}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for file in sorted(Path(sys.argv[1]).iterdir()):
        check(file)
