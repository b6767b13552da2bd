"""Meanings of config fields: the docstrings that stand below them, read when one is shown."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from mimokit.config.base import ConfigModel


@cache
def field_docs(section: type[ConfigModel]) -> Mapping[str, str]:
    """Return field -> its docstring on one line, of a config class and the ones it inherits from.

    pydantic's `use_attribute_docstrings` parses every class when it is imported.
    """
    docs: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        if issubclass(owner, ConfigModel):
            docs |= _docs(textwrap.dedent(inspect.getsource(owner)))
    return docs


def _docs(source: str) -> dict[str, str]:
    statement = ast.parse(source).body[0]
    assert isinstance(statement, ast.ClassDef)
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in pairwise(statement.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }
