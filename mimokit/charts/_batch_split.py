"""The samples and the frames of a micro-batch, and the ranks that compute them."""

from collections import defaultdict
from typing import Any

import altair as alt

from mimokit.charts import _palette
from mimokit.charts._axes import TEXT_WIDTH, inline, layered, titled
from mimokit.planning.frames import FramePlan
from mimokit.planning.types import LayoutPlan, ModuleBatch
from mimokit.units import counted, samples_text

WHOLE = "micro-batch"
WIDTH = 660
MOST_LINES = 16
"""Replicas of a module with separate lines; more of them share one."""


def batch_split(plan: LayoutPlan) -> alt.LayerChart:
    """Return the samples of one micro-batch as a row, and below it those of each replica."""
    colors = {WHOLE: _palette.MUTED, **_palette.module_colors(plan.modules)}
    rows = [_whole_batch(plan)]
    for name, batch in plan.batch.modules.items():
        rows += _replicas(name, batch)
    _drop_text_that_does_not_fit(rows, WIDTH / plan.batch.samples_per_microbatch)
    order = list(dict.fromkeys(row["line"] for row in rows))
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y(
            "line:N",
            sort=order,
            title=None,
            axis=alt.Axis(labelOpacity=1, labelLimit=260),
            scale=alt.Scale(paddingInner=0.18),
        ),
        tooltip=[
            "module:N",
            "samples:N",
            alt.Tooltip("ranks:N", title="computed by ranks"),
            alt.Tooltip("reads:N", title="read by"),
        ],
    )
    bars = base.mark_bar(cornerRadius=3, stroke=_palette.PAPER, strokeWidth=1.5).encode(
        x=_samples_axis(plan.batch.samples_per_microbatch),
        x2="stop:Q",
        fill=alt.Fill(
            "module:N",
            scale=alt.Scale(domain=list(colors), range=list(colors.values())),
            legend=None,
        ),
    )
    inks = [_palette.ink_on(color) for color in colors.values()]
    text = base.mark_text(fontSize=11, limit=WIDTH).encode(
        x=alt.X("middle:Q"),
        text="text:N",
        color=alt.Color("module:N", scale=alt.Scale(domain=list(colors), range=inks), legend=None),
    )
    description = f"Samples of each replica of {', '.join(plan.batch.modules)}"
    return titled(
        layered(bars, text), "Batch split", _subtitle(plan), description,
        width=WIDTH, height=alt.Step(24),
    )  # fmt: skip


def _subtitle(plan: LayoutPlan) -> str:
    batch = plan.batch
    return (
        f"{counted(batch.samples_per_microbatch, 'sample')} in a micro-batch, "
        f"{counted(batch.num_microbatches, 'micro-batch')} and so "
        f"{counted(batch.global_batch_size, 'sample')} in a step"
    )


def _samples_axis(samples: int) -> alt.X:
    every = max(1, samples // 16)
    return alt.X(
        "start:Q",
        title="samples",
        scale=alt.Scale(domain=[0, samples], nice=False),
        axis=alt.Axis(values=list(range(0, samples + 1, every)), format="d"),
    )


def _whole_batch(plan: LayoutPlan) -> dict[str, Any]:
    size = plan.batch.samples_per_microbatch
    return _bar(WHOLE, WHOLE, (0, size), range(plan.of_replica(0).world_size), "")


def _replicas(module: str, batch: ModuleBatch) -> list[dict[str, Any]]:
    ranks_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, samples in batch.samples.items():
        ranks_of[samples].append(rank)
    bars = []
    for replica, (samples, ranks) in enumerate(sorted(ranks_of.items())):
        readers = [rank for rank in ranks if rank in batch.loads]
        reads = "; ".join(
            f"rank {rank} ({samples_text(batch.loaded[rank])})"
            for rank in readers
            if rank in batch.loaded
        )
        line = f"{module}, replica {replica}" if len(ranks_of) <= MOST_LINES else module
        bars.append(_bar(module, line, samples, ranks, reads))
    return bars


def _bar(
    module: str, line: str, samples: tuple[int, int], ranks: range | list[int], reads: str
) -> dict[str, Any]:
    listed = _listed(sorted(ranks))
    text = f"rank{'s' if len(ranks) > 1 else ''} {listed}"
    return {
        "module": module,
        "line": line,
        "start": samples[0],
        "stop": samples[1],
        "middle": sum(samples) / 2,
        "samples": samples_text(samples),
        "ranks": listed,
        "reads": reads or "–",
        "text": text,
    }


def _drop_text_that_does_not_fit(rows: list[dict[str, Any]], pixels_per_sample: float) -> None:
    for row in rows:
        if len(row["text"]) * TEXT_WIDTH > (row["stop"] - row["start"]) * pixels_per_sample:
            row["text"] = ""


def _listed(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}–{ranks[-1]}"
    if len(ranks) > 8:
        return ", ".join(map(str, ranks[:6])) + f" … {ranks[-1]}"
    return ", ".join(map(str, ranks))


MOST_BARS = 64
"""Ranks up to which each has a bar; beyond, ranks are sorted by their load and drawn as lines."""
BEFORE, AFTER = "as read", "balanced"


def frame_balance(plan: FramePlan) -> alt.LayerChart:
    """Return the load of every rank, as its frames are read and as they are balanced.

    Raises:
        ValueError: the frames have no homes.
    """
    traffic = plan.traffic()
    ranks = plan.num_ranks
    before, after = traffic.sum(axis=1).tolist(), list(plan.load_per_rank)
    mean = sum(after) / ranks
    rows = [*_loads(BEFORE, before, ranks), *_loads(AFTER, after, ranks)]
    few = ranks <= MOST_BARS
    # A plan has costs of any unit; those of whole numbers are patches.
    unit = "patches" if all(float(load).is_integer() for load in plan.loads) else "seconds"
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("load:Q", title=f"load in {unit}", stack=None),
        color=alt.Color(
            "frames:N",
            title=None,
            sort=[BEFORE, AFTER],
            scale=alt.Scale(
                domain=[BEFORE, AFTER], range=[_palette.tint(_palette.MUTED, 0.5), _palette.LINE]
            ),
            legend=alt.Legend(orient="top"),
        ),
        tooltip=["rank:N", "frames:N", alt.Tooltip("load:Q", format=",.4g")],
    )
    if few:
        marks = base.mark_bar().encode(
            x=alt.X("rank:O", title="rank", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("frames:N", sort=[BEFORE, AFTER]),
        )
    else:
        marks = base.mark_line().encode(x=alt.X("place:Q", title="ranks, by their load"))
    average = (
        alt.Chart(inline([{"mean": mean}]))
        .mark_rule(color=_palette.TEXT, strokeDash=[4, 3])
        .encode(y="mean:Q")
    )
    return titled(
        layered(marks, average),
        "Load of the frames on each rank",
        _balance_subtitle(plan, before, mean),
        f"Load of {counted(ranks, 'rank')} before and after frames are balanced",
        width=max(240, min(14 * ranks, 720)),
        height=200,
    )


def _loads(frames: str, loads: list[float], ranks: int) -> list[dict[str, Any]]:
    order = sorted(range(ranks), key=lambda rank: -loads[rank])
    places = {rank: place for place, rank in enumerate(order)}
    return [
        {"rank": rank, "place": places[rank], "frames": frames, "load": loads[rank]}
        for rank in range(ranks)
    ]


def _balance_subtitle(plan: FramePlan, before: list[float], mean: float) -> str:
    if not mean:
        return "no frames"
    return (
        f"the slowest rank has {max(before) / mean:.2f} times the mean as read, "
        f"{plan.makespan / mean:.2f} balanced; {plan.moved:.0%} of the load travels"
    )
