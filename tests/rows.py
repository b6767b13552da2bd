"""Cases as rows of a table: one test runs all of them, and each that fails is told by its name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from ruamel.yaml import YAML

Check = Callable[..., object]
LONGEST = 100
"""How many characters of the values of a row its name has."""


def table(file: Path) -> dict[str, Any]:
    """Read the tables of a file; a name that two rows have is refused."""
    return dict(YAML(typ="safe", pure=True).load(file))


def each(subtests: pytest.Subtests, rows: Mapping[str, Sequence[Any]], check: Check) -> None:
    """Give the values of every row to a check."""
    assert rows
    for name, row in rows.items():
        with subtests.test(name):
            check(*row)


def rows(arguments: str, *cases: Any) -> Callable[[Check], Check]:
    """Run a test for every row of its arguments, as `parametrize` does, but collect it once.

    What else the test asks for are fixtures, which all rows share; `tmp_path` is a row's own.

    Args:
        arguments: names of the values of a row, with commas between them.
        cases: a tuple of values each; or the values, if there is one name.
    """
    names = arguments.split(", ")

    def collected_once(check: Check) -> Check:
        fixtures = [name for name in inspect.signature(check).parameters if name not in names]

        def test(subtests: pytest.Subtests, **given: Any) -> None:
            def of_row(*row: Any) -> None:
                if "tmp_path" in given:
                    given["tmp_path"] = Path(mkdtemp(dir=folder))
                check(**dict(zip(names, row, strict=True)), **given)

            folder = given.get("tmp_path")
            named = {
                f"{number}: {case!r}"[:LONGEST]: case if len(names) > 1 else (case,)
                for number, case in enumerate(cases)
            }
            each(subtests, named, of_row)

        asked = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
            for name in ("subtests", *fixtures)
        ]
        test.__dict__["__signature__"] = inspect.Signature(asked)
        for name in ("__name__", "__doc__", "__module__"):
            setattr(test, name, getattr(check, name))
        return test

    return collected_once
