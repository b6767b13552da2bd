"""The samples that a planner is asked about: their histograms, steps over them, who waits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from mimokit.charts.timeline.spans import of_prediction, timeline_view
from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.extra_rooms import MissingRoomError, import_extra
from mimokit.planning.report import PlannedLayout
from mimokit.units import counted, seconds_text
from mimokit.workload import SampleMix, mix_names, mix_of, read_mix
from mimokit.workload.histogram import TAILS, edges_of, histogram
from mimokit_widgets.planner.background_search import SearchState, without_workload
from mimokit_widgets.planner.verdicts import asked_of

if TYPE_CHECKING:
    from mimokit.layout_search import SearchResult
    from mimokit.layout_search.over_samples import SearchOverSamples
    from mimokit.prediction.task import PredictionTask

FOLLOWS = "The best layout follows when you let go."
FINALISTS = 6
"""Layouts of the last search that follow the samples."""


@dataclass
class SampleQuestion:
    """What of a mix is planned for.

    Attributes:
        source: a published mix, or the file of `data.workload`.
        most: column -> the value to which larger ones are cut.
        without: modalities that are dropped.
        bar: the column and number of the bar whose batch is looked at, or None.
        dragging: a tail is held; the best layout, which takes longer than a step, follows later.
    """

    source: str
    most: dict[str, float] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)
    bar: tuple[str, int] | None = None
    dragging: bool = False

    def handle(self, message: Mapping[str, Any]) -> None:
        """Take what the browser says: another source, the end of a tail, a modality, a bar."""
        if "source" in message:
            self.source = str(message["source"])
            self.most, self.without, self.bar = {}, set(), None
        self.dragging = "dragging" in message
        column = str(message.get("column", ""))
        if "most" in message:
            self.most[column] = float(message["most"])
        if "bar" in message:
            self.bar = (column, int(message["bar"]))
        if "modality" in message:
            change = self.without.discard if message["on"] else self.without.add
            change(str(message["modality"]))

    def mix(self) -> SampleMix:
        """Return the mix that is planned for; raises `ConfigError` as `read_mix`."""
        return self.cut(read_mix(self.source))

    def cut(self, mix: SampleMix) -> SampleMix:
        """Return the mix without its tails and what is dropped."""
        columns = dict(mix.columns)
        for name, most in self.most.items():
            if name in columns:
                columns[name] = np.minimum(columns[name], most)
        for name in columns:
            if name.rpartition(".")[0] in self.without:
                columns[name] = np.zeros(len(mix))
        return mix_of(columns, mix.source)


def first_source(config: ExperimentConfig) -> str:
    """Return what a config names, else the first published mix that fits its model and sequence."""
    from mimokit.architecture.from_config import model_of_config
    from mimokit.prediction.sample_loads import loads_of
    from mimokit.prediction.task import workload_of_config

    if config.data.workload:
        return config.data.workload
    model = model_of_config(config.model, config.name)
    workload = workload_of_config(without_workload(config))
    for name in mix_names():
        with suppress(ConfigError):
            loads_of(read_mix(name), model, workload)
            return name
    return mix_names()[0]


def samples_picture(
    config: ExperimentConfig,
    plan: PlannedLayout,
    supposed: PredictionConfig,
    question: SampleQuestion,
    search: SearchState,
) -> dict[str, Any]:
    """Return histograms, a row per policy, the timeline of a batch; or why there are none.

    Args:
        search: for these samples, or for those before something was dragged.
    """
    named = config.data.workload
    sources = [*mix_names(), *([named] if named and named not in mix_names() else [])]
    picture: dict[str, Any] = {
        "sources": sources, "source": question.source, "columns": [], "modalities": [],
        "headings": [], "rows": [], "said": "", "found": "", "timeline": None, "problem": "",
        "searching": search.goes_on, "loads": search.result is not None,
    }  # fmt: skip
    try:
        whole = read_mix(question.source)
        mix = question.cut(whole)
        picture["columns"] = [_column(name, whole, mix) for name in deciding(whole)]
        picture["modalities"] = [
            {"name": name, "on": name not in question.without} for name in whole.modalities
        ]
        task = _task(config, plan, supposed, mix)
        return picture | _steps(task, question, mix, tuple(plan.modules)) | {
            "found": _found(search, mix, dragging=question.dragging)
        }  # fmt: skip
    except (ConfigError, MissingRoomError) as error:
        return {**picture, "problem": str(error)}


def deciding(mix: SampleMix) -> list[str]:
    """Return the columns that decide what is computed: text, and one of each modality."""
    names = ["text"]
    for modality in mix.modalities:
        each = (f"{modality}.{measure}" for measure in ("seconds", "frames", "items"))
        present = [name for name in each if name in mix.columns]
        vision = f"{modality}.frames"
        names.append(vision if vision in present else present[0])
    return names


def _column(name: str, whole: SampleMix, mix: SampleMix) -> dict[str, Any]:
    bars = list(histogram(mix.columns[name], float(whole.columns[name].max())))
    return {
        "name": name,
        "bars": [
            {
                "share": bar["share"],
                "tail": "tail" if bar["tail"] == TAILS[1] else "",
                "label": _label(bar),
            }
            for bar in bars
        ],
        "largest": float(whole.columns[name].max()),
        "most": float(mix.columns[name].max()),
    }


def _label(bar: Mapping[str, Any]) -> str:
    return f"{bar['from']:,.4g} to {bar['to']:,.4g}: {bar['share']:.1%} of the samples"


def _task(
    config: ExperimentConfig, plan: PlannedLayout, supposed: PredictionConfig, mix: SampleMix
) -> PredictionTask:
    from mimokit.prediction.task import task_of

    model, layout, workload, gpu = asked_of(without_workload(config), plan, supposed)
    return task_of(
        model,
        layout,
        replace(workload, mix=mix),
        gpu,
        software=supposed.software,
        price_per_gpu_hour=supposed.price_per_gpu_hour,
    )


def _steps(
    task: PredictionTask, question: SampleQuestion, mix: SampleMix, modules: tuple[str, ...]
) -> dict[str, Any]:
    predicted = _over_samples("predict").predict_samples(task)
    section = predicted.section()
    shown: dict[str, Any] = {
        "headings": list(section.columns),
        "rows": [list(row) for row in section.rows],
        "said": " ".join(section.sentences),
    }
    if question.bar is None:
        return shown
    batch = _batch_of(task, question.bar, mix)
    drawn, _, shared, *_ = predicted.policies
    timeline = _over_samples("timeline")
    steps = [(known, timeline.batch_timeline(task, known, batch)) for known in (drawn, shared)]
    groups = [
        replace(of_prediction(step), title=str(known.policy))
        for known, step in steps
        if step is not None
    ]
    return shown | {
        "batch": (
            f"The batch with most of such samples takes {seconds_text(drawn.seconds[batch])}; "
            f"{seconds_text(shared.seconds[batch])} with balanced frames. What is empty in a lane "
            "it waits for others."
        ),
        "timeline": timeline_view(groups, modules, "s"),
    }


def _batch_of(task: PredictionTask, bar: tuple[str, int], mix: SampleMix) -> int:
    """Return the drawn batch with most samples of a bar."""
    predict = _over_samples("predict")
    column = mix.columns[bar[0]]
    edges = edges_of(column, float(column.max()))
    place = min(bar[1], len(edges) - 2)
    inside = (column >= edges[place]) & (column <= edges[place + 1])
    replicas = predict.replicas_of(task)
    batches = predict.batches_of(replicas)
    rows = _over_samples("loads").drawn_rows(len(mix), replicas, batches, 0)
    return int(inside[rows].sum(axis=(1, 2)).argmax())


def _over_samples(module: str) -> ModuleType:
    return import_extra(f"prediction.over_samples.{module}", "A step over samples")


def _found(search: SearchState, mix: SampleMix, *, dragging: bool) -> str:
    if search.goes_on:
        return "Searching all layouts for these samples …"
    if search.result is None:
        return search.sentence
    if dragging:
        return FOLLOWS
    over = judged(search.result, mix)
    best, ties = over.best, counted(len(over.ties), "tie")
    fits = "" if best.fits else " Its largest samples do not fit."
    return (
        f"The best of {counted(len(over.finalists), 'layout')} for these samples is "
        f"{best.samples.layout}, {best.chosen.policy}: {seconds_text(best.seconds)}; {ties}.{fits}"
    )


def judged(searched: SearchResult, mix: SampleMix) -> SearchOverSamples:
    """Return the layouts that a search put first, in the order that a mix gives them."""
    workload = replace(searched.task.workload, mix=mix)
    return replace(
        searched,
        task=replace(searched.task, workload=workload),
        finalists=searched.finalists[:FINALISTS],
    ).over_samples()
