"""What the planner does with each message from the browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.config_files import load_preset
from mimokit.config_files.concise import written_text
from mimokit_widgets.planner import edits
from mimokit_widgets.planner.code import as_torchrun
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.hold import GaveWay, Hold, is_traded
from mimokit_widgets.planner.intent import set_sizes, standing_number, stepped
from mimokit_widgets.planner.limits import MOST_MODULES
from mimokit_widgets.planner.opened_model import asked_gpus
from mimokit_widgets.planner.paths import (
    ALL_MODULES,
    PREDICTION,
    SIZES,
    Path,
    module_names,
    short_name,
)
from mimokit_widgets.planner.samples import judged
from mimokit_widgets.planner.training import STRATEGY, set_strategy

if TYPE_CHECKING:
    from mimokit.workload import SampleMix
    from mimokit_widgets.planner.background_search import BackgroundSearch
    from mimokit_widgets.planner.session import Session

Message = Mapping[str, Any]
Reply = dict[str, Any] | None

_NAME = "letters, digits, underscores and hyphens only"


def _edit(session: Session, message: Message) -> None:
    path, text = tuple(str(key) for key in message["path"]), str(message["text"])
    session.edited = list(path)
    before = session.history.before(path)
    plain = _changed(session, before, path, text)
    hold = _hold_for(session, path)
    if hold is None:
        session.take(plain, path)
        return
    edited = meant(session, path)
    draft = hold.kept_with(plain, edited) or hold.nearly_kept_with(plain, edited) or plain
    session.take(draft, path, hold.gave_way(before, draft, edited))


def _hold_for(session: Session, path: Path) -> Hold | None:
    before = session.history.before(path)
    return session.hold_of(before) if session.holding and is_traded(path) else None


def with_number(session: Session, path: Path) -> Callable[[int], Draft | None]:
    """Return what an edit of a field to a number makes of the draft; None: it keeps no hold."""
    before, hold = session.history.before(path), _hold_for(session, path)

    def changed(number: int) -> Draft | None:
        draft = _changed(session, before, path, str(number))
        return draft if hold is None else hold.kept_with(draft, meant(session, path))

    return changed


def _changed(session: Session, draft: Draft, path: Path, text: str) -> Draft:
    if path[:1] == STRATEGY:
        value = (text.strip() or None) if path[-1] == "name" else edits.parsed(text)
        return set_strategy(draft, path, value)
    return set_sizes(draft, meant(session, path), text)


def meant(session: Session, path: Path) -> Path:
    """Return the path that an edit of a field changes: of one module, or of ALL_MODULES."""
    alike = path[:2] == SIZES and session.for_all and path[-1] != "rank_offset"
    return (*path[:2], ALL_MODULES, *path[3:]) if alike else path


def _step(session: Session, message: Message) -> None:
    path, by = tuple(str(key) for key in message["path"]), int(message["by"])
    start = standing_number(session.draft, path, _left_out(session, path))
    if start is None:
        return
    draft = stepped(
        session.draft,
        start,
        by,
        doubling=bool(message.get("doubling")),
        change=with_number(session, path),
        fits=lambda candidate: not session.verdicts.outcome_of(candidate).problems,
    )
    if draft is None:
        way = "larger" if by > 0 else "smaller"
        session.say(f"No {way} {short_name(path[-1])} than {start:,} goes with the rest.")
        return
    hold, before = _hold_for(session, path), session.history.before(path)
    gave = GaveWay() if hold is None else hold.gave_way(before, draft, meant(session, path))
    session.take(draft, path, gave)


def _left_out(session: Session, path: Path) -> int:
    plan = session.valid.plan if session.valid else None
    if plan is not None and path == ("world_size",):
        return plan.world_size
    if plan is not None and path[:2] == SIZES and path[-1] == CONFIG_FIELDS[Axis.DATA]:
        ranks = plan.modules.get(path[2])
        return 1 if ranks is None else ranks.data_parallel
    return 1


def _hold(session: Session, message: Message) -> None:
    session.holding = bool(message["on"])


def _for_all(session: Session, message: Message) -> None:
    session.for_all = bool(message["on"])


def _add(session: Session, _: Message) -> None:
    if len(module_names(session.draft.content)) >= MOST_MODULES:
        session.say(f"The planner shows at most {MOST_MODULES} modules.")
        return
    session.take(edits.add_module(session.draft))


def _rename(session: Session, message: Message) -> None:
    old, new = str(message["name"]), str(message["text"]).strip()
    if new == old:
        return
    if not new or not all(letter.isascii() and (letter.isalnum() or letter in "_-")
                          for letter in new):  # fmt: skip
        session.say(f"Module '{old}': the name '{new}' is invalid; write {_NAME}.")
    elif new in module_names(session.draft.content):
        session.say(f"Module '{old}': there is a module '{new}' already; choose another name.")
    else:
        session.take(edits.rename_module(session.draft, old, new))


def _fix(session: Session, message: Message) -> None:
    fixes = message["fixes"]
    offered = any(error.fixes and list(error.fixes) == fixes for error in session.field_errors)
    if not offered:  # the button was of an older state
        return
    draft = session.draft
    for fix in fixes:
        draft = edits.apply_fix(draft, fix)
    session.take(draft)


def _preset(session: Session, message: Message) -> None:
    config = load_preset(str(message["name"]))
    session.take(Draft(config.to_mapping(), None, session.draft.ranks_per_node))


def _save(session: Session, message: Message) -> None:
    session.save(str(message["path"]).strip() or session.file, replace=bool(message.get("replace")))


def _copy(session: Session, message: Message) -> Reply:
    what = str(message["what"])
    if session.problems or session.valid is None:
        session.save(session.file)  # reports why not
        return None
    config, plan = session.valid.config, session.valid.plan
    texts: dict[str, Callable[[], str]] = {
        "torchrun": lambda: as_torchrun(config, plan, session.ranks_per_node, session.file),
        "yaml": lambda: written_text(config),
    }
    if what not in texts:
        return None
    return {"type": "text", "what": what, "text": texts[what](), "file": session.file}


def _tab(session: Session, message: Message) -> None:
    session.tab = str(message["name"])


def _select(session: Session, message: Message) -> None:
    rank = message["rank"]
    world = session.valid.plan.world_size if session.valid else 0
    session.selected = int(rank) if rank is not None and 0 <= int(rank) < world else None


def _sample(session: Session, message: Message) -> None:
    plan = session.valid.plan if session.valid else None
    sample = message["sample"]
    if plan is None or sample is None:
        session.sample = None
        return
    last = plan.batch.samples_per_microbatch - 1
    session.sample = (min(max(0, int(sample)), last), bool(message["backward"]))


def _traffic(session: Session, message: Message) -> None:
    session.kind, session.by_node = str(message["kind"]), bool(message["by_node"])


def _frames(session: Session, message: Message) -> None:
    if session.frames is not None:
        session.frames.handle(message)


def _samples(session: Session, message: Message) -> None:
    from mimokit.prediction.task import workload_of_config

    asked, search = session.look_at_samples(), session.samples_search
    if "search" in message:
        _start(session, search, asked.mix())
    elif "take" in message and search.state.result is not None:
        assert search.state.searched is not None, "a config is searched for samples"
        best, alike = judged(search.state.result, asked.mix()).best, search.state.searched
        task = replace(search.state.result.task, workload=workload_of_config(alike))
        session.load_layout(best.samples.layout, task, alike)
    else:
        asked.handle(message)


def _gpu(session: Session, message: Message) -> None:
    name, path = str(message["name"]), (*PREDICTION, "gpu")
    if name in session.gpu_names and name != session.supposed.chosen_gpu:
        session.take(edits.with_value(session.draft, path, name), path)


def _search(session: Session, message: Message) -> None:
    session.search_gpus = str(message.get("gpus", "")).strip()
    _start(session, session.search)


def _start(session: Session, search: BackgroundSearch, mix: SampleMix | None = None) -> None:
    config = session.resolved
    if session.problems or config is None:
        search.refuse(f"{session.in_the_way()} {session.problems[0].sentence}")
        return
    assert session.valid is not None, "it has a config"
    gpus = asked_gpus(session.search_gpus, session.valid.plan.world_size)
    if isinstance(gpus, str):
        search.refuse(gpus)
    else:
        search.start(config, gpus, session.supposed, mix)


def _take_found(session: Session, message: Message) -> None:
    search, index = session.search.state, int(message["index"])
    if search.result is not None and 0 <= index < len(search.shown):  # else it was of an older
        session.load_layout(search.shown[index].layout, search.result.task, search.searched)


def _pin(session: Session, message: Message) -> None:
    named = message.get("name")
    if named is not None:
        session.pin(Draft(load_preset(str(named)).to_mapping()))
    elif session.valid_draft is not None:
        session.pin(session.valid_draft)


def _unpin(session: Session, message: Message) -> None:
    place = message.get("place")
    session.pins = [
        pin for at, pin in enumerate(session.pins) if place is not None and at != int(place)
    ]
    if not session.pins and session.tab == "compare":
        session.tab = "ranks"


def _edited_by(edit: Callable[..., Draft], *keys: str) -> Callable[[Session, Message], None]:
    def take(session: Session, message: Message) -> None:
        session.take(edit(session.draft, *(message[key] for key in keys)))

    return take


ACTIONS: Mapping[str, Callable[[Session, Message], Reply]] = {
    "edit": _edit,
    "flag": _edited_by(edits.set_flag, "path", "on"),
    "settle": lambda session, _: session.history.settle(),
    "step": _step,
    "hold": _hold,
    "for_all": _for_all,
    "add": _add,
    "remove": _edited_by(edits.remove_module, "name"),
    "rename": _rename,
    "move": _edited_by(edits.move_module, "name", "by"),
    "feeds": _edited_by(edits.set_feeds, "name", "target", "on"),
    "network": _edited_by(edits.set_network, "name", "published"),
    "end_to_end": _edited_by(edits.end_to_end),
    "fix": _fix,
    "undo": lambda session, _: session.undo(),
    "redo": lambda session, _: session.redo(),
    "preset": _preset,
    "load": lambda session, message: session.load(str(message["text"]), str(message["name"])),
    "save": _save,
    "copy": _copy,
    "tab": _tab,
    "select": _select,
    "sample": _sample,
    "traffic": _traffic,
    "frames": _frames,
    "samples": _samples,
    "gpu": _gpu,
    "search": _search,
    "cancel_search": lambda session, _: session.search.cancel(),
    "take_found": _take_found,
    "pin": _pin,
    "unpin": _unpin,
}
