"""Each rule of a config is a row, and the table of broken configs notices where one is missing."""

import functools
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest.mock import patch

import pytest

from mimokit.config import Problem, rules
from mimokit.config.rules import combinations, roles
from mimokit.config.rules.combinations import REFUSED, Refused
from mimokit.config.rules.module_rules import RULES, SizeRule
from mimokit.config.rules.pair_rules import PAIR_RULES, PairRule
from mimokit.config.rules.rule import ConfigRule, Subject
from tests.config.refusals import SENTENCES, answer, cases
from tests.rows import each

Row: TypeAlias = "ConfigRule | SizeRule | PairRule | Refused | roles.Owners"
OF_OTHERS = {
    # A micro-batch of a config has as many samples as its replicas, and ranks that modules share
    # are compared with the world.
    **dict.fromkeys(("batch", "micro-batches", "shared ranks"), "predictions and searches"),
    "builder (of a whole modality)": "what a builder imports",
}
"""What no file breaks -> who reads the row."""


def rules_in(value: object) -> Iterator[ConfigRule]:
    if isinstance(value, ConfigRule):
        yield value
    inside = value.values() if isinstance(value, Mapping) else value
    for one in inside if isinstance(value, tuple | Mapping) else ():
        yield from rules_in(one)


def all_rows() -> Iterator[tuple[str, Row]]:
    for info in pkgutil.iter_modules(rules.__path__):
        module = importlib.import_module(f"{rules.__name__}.{info.name}")
        yield from ((f"{r.path} | {r.says}", r) for r in rules_in(tuple(vars(module).values())))
    yield from ((rule.name, rule) for rule in (*RULES, *PAIR_RULES))
    yield from ((f"{row.what} | {row.not_with} | {row.modes}", row) for row in REFUSED)
    yield from ((f"only {owners.name}", owners) for owners in roles.OWNERS)


ALL = {id(row): (name, row) for name, row in all_rows()}
BROKEN = [key for key, (name, _) in ALL.items() if name.split(" | ")[0] not in OF_OTHERS]


@contextmanager
def without(row: Row) -> Iterator[None]:
    """Leave a row out."""
    with ExitStack() as stack:
        for home, table in ((combinations, "REFUSED"), (roles, "OWNERS")):
            fewer = tuple(each for each in getattr(home, table) if each is not row)
            stack.enter_context(patch.object(home, table, fewer))
        roles.may_have.cache_clear()
        stack.callback(roles.may_have.cache_clear)
        field, silent = ("finds", False) if isinstance(row, ConfigRule) else ("holds", True)
        if isinstance(row, ConfigRule | SizeRule | PairRule):
            stack.callback(object.__setattr__, row, field, getattr(row, field))
            object.__setattr__(row, field, lambda *read: silent)
        yield


@functools.cache
def cases_of_rows() -> dict[int, str]:
    """Return row -> a config that breaks it."""
    found: dict[int, str] = {}
    case = ""

    def note(row: Row) -> None:
        found.setdefault(id(row), case)

    problem, refusal = ConfigRule.problem, combinations.refusal

    def noting(self: ConfigRule, subject: Subject, broken_by: object) -> Problem:
        note(self)
        return problem(self, subject, broken_by)

    def noting_refusal(part: Any, name: str, what: str, other: str) -> Problem:
        note(next(row for row in REFUSED if row.what == what and other in row.not_with))
        return refusal(part, name, what, other)

    def noting_problem(rule: SizeRule | PairRule) -> Any:
        written = rule.problem
        return lambda *read: note(rule) or written(*read)

    with ExitStack() as stack:
        stack.enter_context(patch.object(ConfigRule, "problem", noting))
        stack.enter_context(patch.object(combinations, "refusal", noting_refusal))
        for rule in (*RULES, *PAIR_RULES):
            stack.callback(object.__setattr__, rule, "problem", rule.problem)
            object.__setattr__(rule, "problem", noting_problem(rule))
        broken = cases()
        for case in broken:
            for sentence, _ in answer(broken[case]):
                for owners in roles.OWNERS:
                    if f"; only {owners.name} has it" in sentence:
                        note(owners)
    return found


def what_comes_of(broken: dict[str, Any]) -> object:
    try:
        return answer(broken)
    except (ValueError, LookupError) as error:  # of a plan that nothing has refused
        return error


def test_a_rule_that_is_missing_is_noticed(subtests: pytest.Subtests) -> None:
    kept, broken = json.loads(SENTENCES.read_text()), cases()

    def check(name: str, row: Row) -> None:
        case = cases_of_rows().get(id(row))
        assert case is not None, f"no config of the table breaks {name}: add one"
        with without(row):
            assert what_comes_of(broken[case]) != kept[case]

    each(
        subtests, {f"{number}: {ALL[key][0]}": ALL[key] for number, key in enumerate(BROKEN)}, check
    )


def test_nothing_else_breaks_what_others_read() -> None:
    assert not set(cases_of_rows()) - set(BROKEN)
