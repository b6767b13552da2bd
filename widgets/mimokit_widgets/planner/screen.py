"""What the planner shows, as data that a browser draws without deciding anything."""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from mimokit.charts._palette import module_colors
from mimokit.config import ExperimentConfig
from mimokit.planning.frames.batch_frames import encoders_with_frames
from mimokit.planning.report import PlannedLayout
from mimokit.planning.report.rows import pipeline_section, plan_title
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.traffic import traffic_of_plan
from mimokit.units import counted, span_text
from mimokit_widgets.planner import paths
from mimokit_widgets.planner.advice import result_of
from mimokit_widgets.planner.edits import apply_fix, feeds_of
from mimokit_widgets.planner.field_errors import MOST_SHOWN, FieldMessage
from mimokit_widgets.planner.figures import compare, compared_verdicts, figures_of
from mimokit_widgets.planner.found_layout import same_task
from mimokit_widgets.planner.inputs import EXECUTION_FLAGS, FLAGS
from mimokit_widgets.planner.limits import MOST_MODULES
from mimokit_widgets.planner.networks import ENCODER, LANGUAGE
from mimokit_widgets.planner.outcome import DraftOutcome, ValidLayout
from mimokit_widgets.planner.samples import samples_picture
from mimokit_widgets.planner.session import Session
from mimokit_widgets.planner.training import training_texts
from mimokit_widgets.planner.verdicts import strip_of
from mimokit_widgets.view_models.batch_lanes import batch_lanes
from mimokit_widgets.view_models.found_layouts import place_of
from mimokit_widgets.view_models.prediction_bars import prediction_bars
from mimokit_widgets.view_models.rank_cells import rank_cells
from mimokit_widgets.view_models.rank_details import rank_details
from mimokit_widgets.view_models.sample_walk import sample_walk
from mimokit_widgets.view_models.traffic_blocks import traffic_blocks

TABS = {
    "ranks": "Ranks",
    "batch": "Batch",
    "traffic": "Traffic",
    "frames": "Frames",
    "samples": "Samples",
    "prediction": "Memory",
    "search": "Search",
    "compare": "Compare",
}
AGED = (
    "The model or the batch has been edited since. A layout that is loaded brings back those that "
    "were searched."
)


def screen_of(session: Session) -> dict[str, Any]:
    """Return what a session shows: fields, problems, figures and the picture of the chosen tab.

    `numbers` has those of the picture as bytes: coordinates of ranks, or traffic. All stands in
    one value, so that no browser draws a half of it with a half of what stood there before.
    """
    state: dict[str, Any] = {
        "serial": session.serial,
        "layout": session.count,
        "edited": session.edited,
        "fields": _fields(session),
        "valid": not session.problems,
        "gave": {"sentence": session.gave.sentence, "paths": [*map(list, session.gave.paths)]},
        "problems": [_problem(session, each) for each in session.field_errors[:MOST_SHOWN]],
        "more_problems": max(0, len(session.field_errors) - MOST_SHOWN),
        "notice": session.notice,
        "again": session.again,
        "can_undo": session.history.can_undo,
        "can_redo": session.history.can_redo,
        "pinned": len(session.pins),
        "verdict": None,
        "tab": session.tab,
        "tabs": [],
        "headline": "",
        "figures": [],
        "notes": [],
    }
    valid = session.valid
    if valid is None:
        return state
    config, plan = valid.config, valid.plan
    names = _tabs(session, valid)
    tab = session.tab if session.tab in names else "ranks"
    state |= {
        "tab": tab,
        "tabs": [{"name": name, "title": TABS[name]} for name in names],
        "headline": " · ".join(filter(None, (plan_title(plan), session.model_text))),
        "figures": [each.to_json() for each in figures_of(config, plan)],
        "notes": list(valid.notes),
        "verdict": _verdict(session),
    }
    return state | _picture(session, tab, config, plan)


def _problem(session: Session, error: FieldMessage) -> dict[str, Any]:
    draft = session.draft
    for fix in error.fixes:
        draft = apply_fix(draft, fix)
    return {**error.to_json(), "result": result_of(session, draft) if error.fixes else ""}


def _verdict(session: Session) -> dict[str, Any] | None:
    now, pinned = session.valid_draft, session.pinned
    if now is None:
        return None
    before, against = session.before, "with the layout before the last edit"
    if pinned:
        before, outcome = pinned[0]
        layout = outcome.layout
        against = f"with {f'pinned {layout.config.name}' if layout else 'the pinned layout'}"
    verdicts, gpu = session.verdicts, session.supposed.chosen_gpu
    if before is None:
        return strip_of(verdicts.verdict_of(now), None, against, "", gpu)
    unlike = verdicts.unlike(now, before)
    return strip_of(verdicts.verdict_of(now), verdicts.verdict_of(before), against, unlike, gpu)


def _tabs(session: Session, valid: ValidLayout) -> list[str]:
    absent = {
        "frames": not encoders_with_frames(valid.config),
        "compare": not session.pins,
    }
    return [name for name in TABS if not absent.get(name, False)]


def _picture(
    session: Session, tab: str, config: ExperimentConfig, plan: PlannedLayout
) -> dict[str, Any]:
    per_node = session.ranks_per_node
    if tab == "ranks":
        ranks, cells = rank_cells(plan, per_node)
        selected = session.selected
        details = {} if selected is None else rank_details(plan, selected, per_node, config)
        return {"ranks": ranks, "numbers": cells, "details": details}
    if tab == "batch":
        walk = {}
        if session.sample is not None:
            sample, backward = session.sample
            walk = sample_walk(plan, sample, backward=backward, config=config)
        return {"batch": batch_lanes(plan), "walk": walk}
    if tab == "traffic":
        traffic, kind = traffic_of_plan(config, plan), session.kind
        blocks, matrix = traffic_blocks(traffic, per_node, kind, by_node=session.by_node)
        return {"traffic": blocks, "numbers": matrix}
    if tab == "prediction":
        picture = prediction_bars(config, plan, session.supposed)
        if plan.pipeline is not None:
            section = pipeline_section(plan.pipeline, module_colors(plan.modules))
            clock = r"^Pipeline: |, makespan [^;]*"  # in units, where the picture has seconds
            picture["order"] = re.sub(clock, "", section.heading)
        return {"prediction": picture}
    if tab == "frames":
        frames = session.look_at_frames()
        assert frames is not None, "a layout without images has no such tab"
        picture, matrix = frames.picture()
        return {"frames": picture, "numbers": matrix}
    if tab == "samples":
        asked, search = session.look_at_samples(), session.samples_search.state
        return {"samples": samples_picture(config, plan, session.supposed, asked, search)}
    if tab == "search":
        return {"search": _search(session, plan)}
    return {"compare": _comparison(session, ValidLayout(config, plan))}


def _search(session: Session, plan: LayoutPlan) -> dict[str, Any]:
    search, config = session.search.state, session.resolved
    aged = (
        search.result is not None
        and config is not None
        and not same_task(config, search.result.task)
    )
    return {
        "gpus": session.search_gpus,
        "world": f"{plan.world_size:,}",
        "loaded": place_of(session.loaded_layout, search.shown),
        "aged": AGED if aged else "",
    }


def _comparison(session: Session, valid: ValidLayout) -> dict[str, Any]:
    assert session.valid_draft is not None, "what is shown is valid"
    shown = [*session.pinned, (session.valid_draft, DraftOutcome(valid))]
    layouts = [each.layout for _, each in shown]
    lines = compare([(layout.config, layout.plan) if layout else None for layout in layouts])
    verdicts = [session.verdicts.verdict_of(draft) for draft, _ in shown]
    unlike = [session.verdicts.unlike(draft, shown[0][0]) for draft, _ in shown]
    decides = compared_verdicts(verdicts, [not each for each in unlike])
    return {
        "names": [_name(outcome) for _, outcome in shown],
        "unlike": unlike,
        "verdicts": [line.to_json() for line in decides],
        "lines": [line.to_json() for line in lines],
        "colors": module_colors(
            dict.fromkeys(name for layout in layouts if layout for name in layout.plan.modules)
        ),
    }


def _name(outcome: DraftOutcome) -> str:
    layout = outcome.layout
    return plan_title(layout.plan).partition(" · ")[0] if layout else "rejected"


def _fields(session: Session) -> dict[str, Any]:
    draft, content = session.draft, session.draft.content
    plan = session.valid.plan if session.valid else None
    names = paths.module_names(content)
    colors = module_colors(names)
    fed = feeds_of(content)
    return {
        "name": _text(paths.value_at(content, ("name",))),
        "file": session.file,
        "mode": _text(paths.value_at(content, ("model", "deployment_mode"))),
        "gaps": paths.value_at(content, ("model", "allow_rank_gaps")) is True,
        "world_size": _text(draft.world_size),
        "world": "" if plan is None else f"{plan.world_size:,}",
        "ranks_per_node": _text(draft.ranks_per_node),
        "gpu": session.supposed.chosen_gpu,
        "gpu_names": session.gpu_names,
        "price": _text(paths.value_at(content, (*paths.PREDICTION, "price_per_gpu_hour"))),
        "holding": session.holding,
        "for_all": session.for_all,
        "training": training_texts(content),
        "data": {
            name: _text(paths.value_at(content, ("data", name))) for name in paths.DATA_FIELDS
        },
        "layers": layers_of({name: fed.get(name, []) for name in names[:MOST_MODULES]}),
        "modules": [
            _module(session, name, colors[name], fed.get(name, [])) for name in names[:MOST_MODULES]
        ],
    }


def _module(session: Session, name: str, color: str, fed: list[str]) -> dict[str, Any]:
    content = session.draft.content
    plan = session.valid.plan if session.valid and not session.problems else None
    ranks = plan.modules.get(name) if plan is not None else None
    sizes = paths.mapping_at(content, (*paths.SIZES, name))
    network = paths.mapping_at(content, (*paths.NETWORKS, name))
    language = paths.value_at(content, ("model", "llm_module_name")) == name
    return {
        "name": name,
        "color": color,
        "language": language,
        "sizes": {each: _text(sizes.get(each)) for each in paths.SIZE_FIELDS},
        "worked_out": "" if ranks is None else f"{ranks.data_parallel:,}",
        "where": "" if ranks is None else _where(ranks.ranks),
        "beyond": paths.sizes_beyond_inputs(sizes),
        "network": {each: _text(network.get(each)) for each in paths.NETWORK_FIELDS},
        "kind": LANGUAGE if language else ENCODER,
        "token": _text(paths.value_at(content, (*paths.TOKENS, name))),
        "length": _text(paths.value_at(content, (*paths.LENGTHS, name))),
        "flags": {each: network.get(each) is True for each in FLAGS},
        "execution_flags": {each: sizes.get(each) is True for each in EXECUTION_FLAGS},
        "feeds": fed,
    }


def _where(ranks: range) -> str:
    return f"{counted(len(ranks), 'rank')}: {span_text(ranks)}"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value, default=str)


def layers_of(feeds: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the modules in layers: each module is in a later layer than all that feed it.

    Modules in a cycle, which a config rejects, are in the last layer.
    """
    feeding: dict[str, list[str]] = {name: [] for name in feeds}
    for name, targets in feeds.items():
        for target in targets:
            feeding.setdefault(target, []).append(name)
    order = TopologicalSorter(feeding)
    with contextlib.suppress(CycleError):
        order.prepare()
    layers: list[list[str]] = []
    left = dict.fromkeys(feeds)
    while ready := set(order.get_ready()):
        order.done(*ready)
        if layer := [name for name in left if name in ready]:
            layers.append(layer)
        left = dict.fromkeys(name for name in left if name not in ready)
    return [*layers, list(left)] if left else layers
