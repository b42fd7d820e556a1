"""`maskrl export`."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from maskrl.cli.words import Force, OtherEnv, Trust, command, consented, print_rows, refusing
from maskrl.words import size


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="policy.onnx, or policy.pt2 for torch.export.")],
    episodes: Annotated[int, typer.Option(metavar="N", min=0, max=1000, help="Episodes to compare returns over.")] = 5,
    observations: Annotated[
        int, typer.Option(metavar="N", min=1, max=10**6, help="Observations to compare actions on.")
    ] = 1000,
    trust: Trust = False,
    env: OtherEnv = None,
    force: Force = False,
) -> None:
    """Write the policy of a run as one file, for onnxruntime or torch. Then check that its actions are the same.

    The check plays in the run's environment, if you trust it; otherwise it compares actions on random pictures.

    $ maskrl export RUN --out policy.onnx
    $ maskrl export RUN --out policy.pt2 --episodes 0
    """
    from maskrl.outputs import OutputError
    from maskrl.runs import export as exporting
    from maskrl.runs.directory import Run, RunError, title
    from maskrl.runs.policy import policy_of

    with refusing(RunError, ValueError, ModuleNotFoundError, OutputError):
        exporting.require_format(out)
        opened = Run.open(run)
        exporting.require_place(out, opened, force=force)
        recipe = consented(opened.recipe, env, trust)
        state = opened.newest(lambda text: print(f"maskrl: {text}", file=sys.stderr), older=True)
        policy = policy_of(opened.recipe, state)
    with refusing(OSError), redirect_stdout(sys.stderr):  # an environment may print
        told, proof = exporting.write_checked(
            out, policy, opened.recipe, played=recipe, episodes=episodes, observations=observations
        )
    print(f"{title(recipe)}, checkpoint at {policy.clock.frames:,} frames")
    print_rows(
        {
            "policy": f"{out}, {size(out.stat().st_size)}",
            "input": told["input"],
            **_beside(told),
            **_about(told["actions"]),
        }
    )
    print_rows({"proof": proof.words})
    if not recipe.env.is_trusted:
        print(
            "\nThe run's environment was not played, because you did not train it on this machine. To check the file by playing:"
        )
        print(f"  {command('export', str(run), out=out, trust=True)}")


def _beside(told: dict[str, Any]) -> dict[str, str]:
    return {"and": told["beside"]} if "beside" in told else {}


def _about(actions: dict[str, Any]) -> dict[str, str]:
    if actions["kind"] == "box":
        bounds = ", ".join(f"{low:g}…{high:g}" for low, high in zip(actions["low"], actions["high"], strict=True))
        return {"action": f"float32 of shape {tuple(actions['shape'])}: {bounds}"}
    return {"action": f"int64: {' × '.join(map(str, actions['counts']))} choices"}
