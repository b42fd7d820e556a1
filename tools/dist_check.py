"""Install what `make dist` built into an empty environment and use it: `python tools/dist_check.py DIST`.

The environment gets the built file, its extra `export` and their dependencies at the tested versions, nothing of the clone. There,
outside the clone, it lists the recipes, trains a toy for some updates and evaluates it. Then it goes from a user's `my_env.py` to a
policy that plays in onnxruntime, as docs/own-environment.md does.
"""

import shutil
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
EXAMPLES = ("my_env.py", "play_onnx.py")  # the files of examples/ that the commands take
OWN = "my_env.py:make_env"
COMMANDS = (
    ("-m", "maskrl", "--version"),
    ("-m", "maskrl", "recipes", "list"),
    ("-m", "maskrl", "train", "toy/reach", *SHORT, "--run-dir", "run", "--log", "none"),
    ("-m", "maskrl", "evaluate", "run", "--episodes", "1"),
    ("-m", "maskrl", "train", OWN, *SHORT, "agent.clips=2", "--run-dir", "own", "--log", "none", "--profile", "lite"),
    ("-m", "maskrl", "export", "own", "--out", "policy.onnx", "--observations", "40", "--episodes", "2"),
    ("play_onnx.py", "policy.onnx", OWN),
)


def check(built: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/env", with_pip=True)
        python = Path(folder) / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        install = ["-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), f"{built}[export]"]
        subprocess.run([python, *install], check=True)
        for name in EXAMPLES:
            shutil.copy(ROOT / "examples" / name, folder)
        for words in COMMANDS:
            print(f"  python {' '.join(words)}", flush=True)
            subprocess.run([python, *words], check=True, cwd=folder, stdout=subprocess.DEVNULL)
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
