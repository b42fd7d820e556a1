"""What no linter of ours says: functions stay short enough to be read at once."""

import ast
from pathlib import Path

import maskrl

LONGEST = 60


def test_no_function_is_longer_than_a_screen():
    long = []
    for path in Path(maskrl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= LONGEST:
                long.append(f"{path.name}: {node.name}")
    assert not long
