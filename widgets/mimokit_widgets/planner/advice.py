"""What else a layout could be: the valid values of a size, and the layouts one step away.

Every alternative is a draft that is planned and predicted as an edit would be, so a figure here is
the one that stands there once it is taken.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config import ConfigError
from mimokit.extra_rooms import MissingRoomError, import_extra
from mimokit.prediction.verdict import Verdict, gain_text, memory_text
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.hold import is_traded, told
from mimokit_widgets.planner.messages import meant, with_number
from mimokit_widgets.planner.paths import SIZES, Path, differences
from mimokit_widgets.planner.verdicts import predicted

if TYPE_CHECKING:
    from mimokit_widgets.planner.session import Session

MOST_CHOICES = 9
EXPERTS = CONFIG_FIELDS[Axis.EXPERT]


@dataclass(frozen=True)
class SizeChoice:
    """A value of a field, and what the layout with it comes to.

    Attributes:
        change: of tokens/s per GPU against the layout that is shown: "+11 %"; empty for that one,
            and where a step does other work, which `besides` names.
        better: whether that is to the good; None where there is no change.
        memory: on the fullest GPU; empty where nothing is predicted.
        besides: what else changes with it.
        shown: whether it is the layout that is shown.
    """

    value: str
    change: str = ""
    better: bool | None = None
    memory: str = ""
    fits: bool = True
    besides: str = ""
    shown: bool = False


def choices_of(session: Session, path: Path) -> list[SizeChoice]:
    """Return the valid values of a size, the nearest to the one that stands there."""
    now = session.valid_draft
    has_choices = is_traded(path) or (path[:2] == SIZES and path[-1] == EXPERTS)
    if now is None or session.valid is None or not has_choices:
        return []
    drafts = {
        number: draft
        for number in _numbers(session, path)
        if (draft := _valid(session, path, number)) is not None
    }
    return [_choice(session, path, number, draft) for number, draft in drafts.items()]


def result_of(session: Session, draft: Draft) -> str:
    """Return what a draft gains or loses against the last valid one: "−10 %"; "" if unknown."""
    now = session.valid_draft
    if now is None or session.verdicts.outcome_of(draft).layout is None:
        return ""
    choice = _compared(session, draft, now)
    return ", ".join(filter(None, (choice.change, "" if choice.fits else "does not fit")))


def steps_away(session: Session) -> list[str]:
    """Return what the layouts that differ in one size cost or save, in sentences."""
    valid, config = session.valid, session.resolved
    if valid is None or config is None:
        return []
    supposed = session.supposed
    try:
        search = import_extra("layout_search", "What a layout one step away takes")
        best = predicted(config, valid.plan, supposed)
        task = search.task_of(
            config,
            gpus=valid.plan.world_size,
            gpu=supposed.chosen_gpu,
            software=supposed.software,
            price_per_gpu_hour=supposed.price_per_gpu_hour,
        )
        return list(search.one_step_away(task, best))
    except MissingRoomError as error:
        return [str(error)]
    except ConfigError:  # what is not predicted or searched has no neighbours
        return []


def advice_of(session: Session, path: Path) -> dict[str, Any]:
    """Return what the browser draws of it.

    Args:
        path: of the field that is focused; empty for none.
    """
    choices = [asdict(choice) for choice in choices_of(session, path)]
    return {
        "layout": session.count,
        "path": list(path),
        "choices": choices,
        "why": [] if session.problems else steps_away(session),
        "follows": get_ipython() is not None,  # on later layouts, unasked
    }


def _numbers(session: Session, path: Path) -> list[int]:
    assert session.valid is not None
    ranks = session.valid.plan.modules.get(path[2])
    if ranks is None:
        return []
    size = ranks.size if session.holding else 2 * ranks.size
    now = session.draft.value_at(path)
    near = now if isinstance(now, int) and now > 0 else 1
    divisors = (number for number in range(1, size + 1) if size % number == 0)
    nearest = sorted(divisors, key=lambda number: max(number / near, near / number))
    return sorted(nearest[:MOST_CHOICES])


def _valid(session: Session, path: Path, number: int) -> Draft | None:
    draft = with_number(session, path)(number)
    if draft is None or session.verdicts.outcome_of(draft).layout is None:
        return None
    return draft


def _choice(session: Session, path: Path, number: int, draft: Draft) -> SizeChoice:
    now = session.valid_draft
    assert now is not None
    choice = _compared(session, draft, now)
    edited = meant(session, path)
    changes = differences(now.content, draft.content)
    given = [each for each in changes if each[0][:2] != SIZES or each[0][-1] != edited[-1]]
    besides = ", ".join(filter(None, (told(given, path), choice.besides)))
    shown = draft.content == now.content
    return replace(choice, value=str(number), besides=besides, shown=shown)


def _compared(session: Session, draft: Draft, now: Draft) -> SizeChoice:
    verdicts = session.verdicts
    verdict, before = verdicts.verdict_of(draft), verdicts.verdict_of(now)
    if not isinstance(verdict, Verdict):
        return SizeChoice("")
    unlike = verdicts.unlike(draft, now)
    change = "" if unlike or not isinstance(before, Verdict) else gain_text(verdict, before)
    better = change.startswith("+") if change else None
    return SizeChoice("", change, better, memory_text(verdict), verdict.fits, unlike)
