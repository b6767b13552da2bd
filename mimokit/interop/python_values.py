"""Numbers in Python source, read without running it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping

from mimokit.interop.imported import refused

_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")


def constants_of(tree: ast.Module) -> Mapping[str, ast.expr]:
    """Return the module-level names of a file and what they are set to."""
    found: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name):
            found[target.id] = value
    return found


def number_at(node: ast.expr, names: Mapping[str, ast.expr], where: str, depth: int = 0) -> int:
    """Return the whole number that an expression stands for.

    Numbers, module-level names, `+ - * //`, `int(...)` and the default of an environment variable
    are understood.

    Raises:
        ConfigError: anything else, with its line.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in names and depth < 20:
        return number_at(names[node.id], names, where, depth + 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = (number_at(n, names, where, depth + 1) for n in (node.left, node.right))
        if not (isinstance(node.op, ast.FloorDiv) and right == 0):
            return int(_OPERATIONS[type(node.op)](left, right))
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called == "int" and len(node.args) == 1:
            return _whole(node.args[0], names, where, depth)
    raise refused(
        where,
        "value",
        ast.unparse(node),
        f"line {node.lineno} has '{ast.unparse(node)}' where a whole number is read; write the "
        "number, or a module-level name for it.",
    )


def _whole(node: ast.expr, names: Mapping[str, ast.expr], where: str, depth: int) -> int:
    """Return what stands in `int(...)`: a number, its text, or a variable's default."""
    looked_up = isinstance(node, ast.Call) and ast.unparse(node.func) in _ENVIRONMENT
    if looked_up and isinstance(node, ast.Call) and len(node.args) == 2:
        return _whole(node.args[1], names, where, depth + 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isdecimal():
        return int(node.value)
    return number_at(node, names, where, depth + 1)


def names_environment(node: ast.AST) -> bool:
    """Tell whether a value depends on environment variables."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(ast.unparse(call.func) in _ENVIRONMENT for call in calls)
