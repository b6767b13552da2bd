"""Problems as the planner shows them: next to which field, and with which button."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mimokit.config import Fix, Problem, RuntimeConfig
from mimokit.config.experiment import ExperimentConfig, MimoParallelismConfig
from mimokit.units import counted
from mimokit_widgets.planner import paths
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import apply_fix, with_value
from mimokit_widgets.planner.hold import Hold, is_traded, told
from mimokit_widgets.planner.outcome import evaluate
from mimokit_widgets.planner.paths import Path

FARTHEST = 16
"""Every number so near is tried; beyond, powers of two."""
MOST = 2**20


def nearest_number(
    draft: Draft, path: Path, righted: Callable[[int], Draft | None]
) -> tuple[int, Draft] | None:
    """Return the nearest number for the field at a path that rights a draft, and what it makes."""
    typed = draft.value_at(path)
    if not isinstance(typed, int) or isinstance(typed, bool) or not 0 <= typed <= MOST:
        return None
    drafts = ((number, righted(number)) for number in _around(typed))
    return next(((number, right) for number, right in drafts if right is not None), None)


def _around(typed: int) -> Iterator[int]:
    near = {typed + step for step in range(-FARTHEST, FARTHEST + 1)}
    numbers = near | {2**power for power in range(MOST.bit_length())}
    yield from sorted(
        (each for each in numbers if each > 0 and each != typed),
        key=lambda each: (abs(each - typed), -each),
    )


MOST_SHOWN = 24

_IN_FIELDS = {"give --world-size (world_size=... in Python) or": "fill in the world size or"}
"""What a sentence asks for on a command line -> what it asks for here."""

_KNOWN: Mapping[Path, tuple[str, ...]] = {
    (): tuple(ExperimentConfig.model_fields),
    ("model",): (*MimoParallelismConfig.model_fields, "llm_rank_offset"),
    ("data",): paths.DATA_FIELDS,
    ("runtime",): tuple(RuntimeConfig.model_fields),
    paths.PREDICTION: paths.PREDICTION_FIELDS,
    paths.SIZES: paths.SIZE_FIELDS,
    paths.NETWORKS: paths.NETWORK_FIELDS,
}


@dataclass(frozen=True)
class FieldMessage:
    """One problem on the screen.

    Attributes:
        path: the field to mark; empty where it has none on the screen.
        fixes: what a click changes; empty without a button.
        label: what the button says: "DP 3 → 4".
    """

    path: Path
    sentence: str
    fixes: tuple[Fix, ...] = ()
    label: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what the browser draws."""
        shown = {"path": list(self.path), "sentence": self.sentence, "label": self.label}
        return {**shown, "fixes": list(self.fixes)}


def field_errors_of(
    problems: Iterable[Problem],
    draft: Draft,
    valid: Draft | None = None,
    edited: Path = (),
    hold: Hold | None = None,
    *,
    holding: bool = False,
) -> tuple[FieldMessage, ...]:
    """Return one error per problem, and before them those about the edit that brought them all.

    Args:
        valid: the last one that was accepted; a field goes back to its value where the problem
            itself knows no fix.
        edited: the field whose edit made the draft, empty for any other cause.
        hold: the GPUs and samples that a size may keep; the fix that keeps them comes first.
        holding: whether other fixes keep them too, where they can.
    """
    errors = tuple(_field_error(problem, draft, valid) for problem in problems)
    if not errors or not edited:
        return errors
    keeping = None if hold is None else _keeping(draft, edited, hold)
    first: tuple[FieldMessage, ...] = () if keeping is None else (keeping,)
    if (alike := _for_all(draft, edited)) is not None:
        return (*first, alike, *(_explaining(each, edited, holding) for each in errors))
    if not first and any(_rights(each, edited) for each in errors):
        return errors
    cause = _cause(draft, edited, hold if holding else None)
    if cause is not None:
        first += (cause,)
    if keeping is not None:  # it rights all of them, and their fixes would change the GPUs
        return (*first, *(replace(each, fixes=(), label="") for each in errors))
    return (*first, *(_explaining(each, edited, holding) for each in errors)) if first else errors


def _keeping(draft: Draft, edited: Path, hold: Hold) -> FieldMessage | None:
    way = next(hold.ways(draft, edited), None) if is_traded(edited) else None
    if way is None:
        return None
    path, kept = way
    changes = list(paths.differences(draft.content, kept.content))
    typed = paths.shown(draft.value_at(edited))
    sentence = (
        f"Module '{edited[2]}': {edited[-1]} {typed} alone does not go with the rest; "
        f"{told(changes, edited)} keep {hold}."
    )
    (at, _, value), *_ = changes
    label = f"{paths.short_name(at[-1])} {paths.shown(value)}"
    if path != edited:
        label = f"{paths.short_name(edited[-1])} {typed} for all"
    fixes = tuple(Fix(path=".".join(each), value=value) for each, _, value in changes)
    label += f", keeps {counted(hold.plan.world_size, 'rank')}"
    return FieldMessage(edited, sentence, fixes, label)


def _for_all(draft: Draft, edited: Path) -> FieldMessage | None:
    shared = draft.value_at(("model", "deployment_mode")) == "homogeneous"
    typed = draft.value_at(edited)
    if not shared or edited[:2] != paths.SIZES or edited[-1] == "rank_offset" or typed is None:
        return None
    fix: Fix = {"path": ".".join((*paths.SIZES, paths.ALL_MODULES, edited[-1])), "value": typed}
    if evaluate(apply_fix(draft, fix)).layout is None:
        return None
    sentence = (
        f"Module '{edited[2]}': {edited[-1]} is {paths.shown(typed)} for it alone; in homogeneous "
        "mode all modules have the same sizes."
    )
    label = f"{paths.short_name(edited[-1])} {paths.shown(typed)} for all"
    return FieldMessage(edited, sentence, (fix,), label)


def _rights(error: FieldMessage, edited: Path) -> bool:
    return error.path == edited and all(fix["path"] == ".".join(edited) for fix in error.fixes)


def _cause(draft: Draft, edited: Path, hold: Hold | None) -> FieldMessage | None:
    def righted(number: int) -> Draft | None:
        changed = with_value(draft, edited, number)
        if hold is not None and is_traded(edited):
            return hold.kept_with(changed, edited)
        return None if evaluate(changed).layout is None else changed

    better = nearest_number(draft, edited, righted)
    if better is None:
        return None if hold is None else _cause(draft, edited, None)
    number, right = better
    typed = draft.value_at(edited)
    whose = f"Module '{edited[2]}'" if edited[:2] in (paths.SIZES, paths.NETWORKS) else "Layout"
    given = [each for each in paths.differences(draft.content, right.content) if each[0] != edited]
    also = f", with {told(given, edited)}" if given else ""
    sentence = f"{whose}: {edited[-1]} {typed} does not go with the rest; {number} does{also}."
    values = [(edited, number), *((path, value) for path, _, value in given)]
    fixes = tuple(Fix(path=".".join(path), value=value) for path, value in values)
    return FieldMessage(edited, sentence, fixes, paths.change_text(edited, typed, number))


def _explaining(error: FieldMessage, edited: Path, holding: bool) -> FieldMessage:
    """Return an error that only explains another: nothing else of a module is bent to suit it, nor
    sizes of others where they are held."""
    sizes = edited[:2] if holding and edited[:2] == paths.SIZES else edited[:-1]
    bent = (".".join(paths.NETWORKS), ".".join(sizes))
    if not any(fix["path"].startswith(bent) for fix in error.fixes):
        return error
    return replace(error, fixes=(), label="")


def _field_error(problem: Problem, draft: Draft, valid: Draft | None) -> FieldMessage:
    path = _path(problem, draft.content)
    for option, field in _IN_FIELDS.items():
        problem = replace(problem, sentence=problem.sentence.replace(option, field))
    fix = problem.fix
    if fix is not None:
        return FieldMessage(path, problem.sentence, (fix,), _label(fix, problem, draft))
    if path and _unknown(path) and draft.value_at(path[:-1]) is not None:
        removal: Fix = {"path": ".".join(path), "value": None}
        return FieldMessage(path, problem.sentence, (removal,), f"Remove {problem.field}")
    back = _back(path, draft, valid)
    if back is None:
        return FieldMessage(path, problem.sentence)
    return FieldMessage(path, problem.sentence, (back,), _label(back, problem, draft))


def _back(path: Path, draft: Draft, valid: Draft | None) -> Fix | None:
    if valid is None or not path:
        return None
    before, now = valid.value_at(path), draft.value_at(path)
    if before == now or not isinstance(before, int | str | None):
        return None
    return {"path": ".".join(path), "value": before}


def _path(problem: Problem, content: Mapping[str, Any]) -> Path:
    module, field = problem.module, problem.field
    if module == "world" and field in paths.WORLD_FIELDS:
        return (field,)
    if module in paths.module_names(content):
        if field in paths.SIZE_FIELDS:
            return (*paths.SIZES, module, field)
        if field == "special_token_ids":
            return (*paths.TOKENS, module)
        for path in paths.OF_DATA:
            if field == path[-1]:
                return (*path, module)
        if field == "topology":
            return ("model", "topology", module)
        if field in paths.NETWORK_FIELDS:
            return (*paths.NETWORKS, module, field)
        for section in (paths.SIZES, paths.NETWORKS):
            if field in paths.mapping_at(content, (*section, module)):
                return (*section, module, field)
        return (*paths.SIZES, module)
    if module in ("model", "data", "runtime", "prediction"):
        return (module, field)
    return (field,) if field in content else ()


def _unknown(path: Path) -> bool:
    known = None if len(path) == 3 else _KNOWN.get(path[:2] if len(path) == 4 else path[:-1])
    return known is not None and path[-1] not in (*known, *paths.WORLD_FIELDS)


def _label(fix: Fix, problem: Problem, draft: Draft) -> str:
    path = tuple(fix["path"].split("."))
    old = draft.value_at(path)
    what = paths.short_name(path[-1])
    if path[:2] in (paths.SIZES, paths.NETWORKS) and path[2] != problem.module:
        what = f"{path[2]} {what}"
    if path[:2] == paths.TOKENS:
        what = "token id"
    return f"{what} {paths.shown(old)} → {paths.shown(fix['value'])}"
