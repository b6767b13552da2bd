"""Right layouts are drawn and verified: `python -m benchmarks.drawn_layouts [N [FIRST]]`.

A third argument, `graphs`, draws those with adapters, encoders of several receivers, and decoders
of items. Every second one does not clip gradients. A layout that fails is a false alarm, or a
defect.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.table import show
from mimokit.cluster import EngineCluster, RankError
from mimokit.config import ExperimentConfig
from mimokit.experiment import VerificationReport, verify
from mimokit.units import counted
from tests.layouts_drawn import MOST_RANKS, numbered_config, numbered_graph

NUMBER, FEW = 200, 8
"""Layouts that are drawn, and with all other benchmarks."""
STEPS = 3
ATTEMPTS = 2
"""A rank may be lost on a busy machine; a layout of which no attempt ends has failed."""


@dataclass(frozen=True)
class Drawn:
    """A layout, and what `verify` said of it; None: no attempt ended."""

    number: int
    config: ExperimentConfig
    report: VerificationReport | None
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether it computes what one process computes."""
        return self.report is not None and self.report.passed

    @property
    def clips(self) -> bool:
        """Whether its gradients are clipped."""
        return self.config.runtime.clip_grad > 0


def run(
    numbers: Iterable[int], drawn: Callable[[int], ExperimentConfig] = numbered_config
) -> Iterator[Drawn]:
    """Verify drawn layouts, in one cluster."""
    with EngineCluster(n=MOST_RANKS, progress=False) as cluster:
        for number in numbers:
            config, start = drawn(number), time.perf_counter()
            report = _verified(cluster, config)
            yield Drawn(number, config, report, time.perf_counter() - start)


def _verified(cluster: EngineCluster, config: ExperimentConfig) -> VerificationReport | None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return verify(cluster, config, steps=STEPS)
        except RankError as error:
            print(f"{config.name}, attempt {attempt}: {str(error)[-1000:]}", flush=True)
    return None


def rows(drawn: list[Drawn] | None = None) -> list[dict[str, Any]]:
    """Return the figures of the table."""
    if drawn is None:
        drawn = [*run(range(FEW)), *run(range(FEW), numbered_graph)]
    return [row for clips in (True, False) for row in _rows_of(drawn, clips)]


def _rows_of(drawn: list[Drawn], clips: bool) -> Iterator[dict[str, Any]]:
    chosen = [one for one in drawn if one.clips == clips]
    if not chosen:
        return
    gradients = "clipped" if clips else "not clipped"
    layouts = counted(len(chosen), "layout")
    failed = [one.number for one in chosen if not one.passed]
    reports = {one.number: one.report for one in chosen if one.report is not None}
    yield {
        "name": f"{layouts}, gradients {gradients}: false alarms {failed or ''}",
        "measured": len(failed),
        "target": 0,
        "unit": "",
        "ok": not failed,
    }
    explained = [number for number, report in reports.items() if _is_rounding(report)]
    yield {
        "name": f"above the tolerance by rounding alone, gradients {gradients} {explained or ''}",
        "measured": len(explained),
        "target": None,
        "unit": "",
        "ok": True,
    }
    for what in ("loss", "gradient", "weight"):
        in_fp32 = [report for report in reports.values() if report.yardstick is None]
        worst = max((getattr(one, f"max_{what}_difference") for one in in_fp32), default=0.0)
        yield {
            "name": f"worst {what} difference, gradients {gradients}, in 1e-6",
            "measured": 1e6 * worst,
            "target": 10,
            "unit": "",
            "ok": worst <= 1e-5 or not failed,
        }


def _is_rounding(report: VerificationReport) -> bool:
    return report.passed and bool(report.gradient_rounding)


def _line(one: Drawn) -> str:
    model, report = one.config.model, one.report
    sizes = {
        name: sizes.model_dump(exclude_defaults=True, exclude_none=True)
        for name, sizes in model.module_parallelisms.items()
    }
    what = f"{one.number} {one.seconds:.1f} s, {model.deployment_mode} {sizes}"
    if report is None:
        return f"{what}: FAILED, no attempt ended"
    outcome = "ok" if report.passed else f"FAILED {report.verdict}"
    if _is_rounding(report):
        outcome = f"ok by rounding: {report.verdict}"
    return (
        f"{what}, {one.config.runtime.precision or 'fp32'}: {report.max_loss_difference:.1e} "
        f"{report.max_gradient_difference:.1e} {report.max_weight_difference:.1e} {outcome}"
    )


def main() -> None:
    """Verify and print a line each, then the table."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else NUMBER
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    make = numbered_graph if "graphs" in sys.argv[3:] else numbered_config
    drawn: list[Drawn] = []
    for one in run(range(first, first + number), make):
        drawn.append(one)
        print(_line(one), flush=True)
    show("Drawn layouts against one process", rows(drawn))


if __name__ == "__main__":
    main()
