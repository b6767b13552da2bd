"""Found faults, false alarms and the cost of looking.

`python -m benchmarks.culprit faults [bf16] [WORD…]`, `alarms [N [FIRST]]` or `cost`; or all.
Alarms are looked for in drawn layouts, each in fp32 and in bf16.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import mimokit
from benchmarks.table import show
from mimokit.cluster import EngineCluster, RankError
from mimokit.config import ExperimentConfig
from mimokit.experiment import CulpritReport, compute_reference, explain, verify
from mimokit.experiment.tolerances import TOLERANCE
from tests.experiment.culprit.faults import FAULTS
from tests.experiment.culprit.faults.fault import Fault
from tests.layouts import digits_config
from tests.layouts_drawn import MOST_RANKS, numbered_config

NUMBER, FEW = 200, 4
"""Layouts that are drawn, and faults that are planted with all other benchmarks."""
PRECISIONS = None, "bf16"
PAIRS = 5


def faults(words: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Plant faults, print how each is named, and return the counts.

    Args:
        words: of the names of faults; "bf16" is the precision to plant them in.
    """
    precision = "bf16" if "bf16" in words else None
    words = [word for word in words if word != precision]
    chosen = [one for one in FAULTS if not words or any(w in one.name for w in words)]
    right, seen = 0, 0
    with EngineCluster(n=MOST_RANKS, progress=False) as cluster:
        for fault in chosen:
            begun = time.perf_counter()
            wrong, verdict, is_seen = _named(fault, cluster, precision)
            right, seen = right + (not wrong), seen + is_seen
            seconds = time.perf_counter() - begun
            print(
                f"{'WRONG' if wrong else 'right'} {seconds:4.1f} s {fault.name}: {verdict}",
                f"    {len(chosen)} planted, so far {seen} found, {right} named rightly",
                sep="\n",
                flush=True,
            )
    for name, count, share in (("found", seen, 1.0), ("named rightly", right, 0.95)):
        yield {
            "name": f"planted faults {name}, {precision or 'fp32'}, of {len(chosen)}",
            "measured": count,
            "target": f"at least {share:.0%}", "unit": "", "ok": count >= share * len(chosen),
        }  # fmt: skip


def _named(fault: Fault, cluster: EngineCluster, precision: str | None) -> tuple[str, str, bool]:
    """Return what is wrong with an answer, the answer, and whether anything was found."""
    try:
        explanation = fault.explained(cluster, precision)
    except RankError as error:
        message = str(error)[-500:]
        return message, message, False
    return fault.wrong(explanation), explanation.verdict, explanation.divergence is not None


@dataclass(frozen=True)
class Drawn:
    """A right layout, and what was said of it; None: no attempt ended."""

    number: int
    precision: str
    report: CulpritReport | None

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return self.report is not None and self.report.passed

    @property
    def ratio(self) -> float:
        """The largest difference over the spread, of tensors that differ by more than fp32 may."""
        compared = () if self.report is None else self.report.compared
        above = [one for one in compared if one.difference > TOLERANCE]
        return max((one.difference / max(one.spread, 1e-300) for one in above), default=0.0)


def drawn(numbers: Iterable[int]) -> Iterator[Drawn]:
    """Explain drawn layouts, in one cluster."""
    with EngineCluster(n=MOST_RANKS, progress=False) as cluster:
        for number in numbers:
            for precision in PRECISIONS:
                config = _in_precision(number, precision)
                begun = time.perf_counter()
                one = Drawn(number, precision or "fp32", _explained(cluster, config))
                print(_line(one, time.perf_counter() - begun), flush=True)
                yield one


def _in_precision(number: int, precision: str | None) -> ExperimentConfig:
    """Return a drawn layout without a strategy, which `explain` rejects."""
    config = numbered_config(number)
    config.strategy, config.runtime.precision = None, precision
    return config.finalize()


def _explained(cluster: EngineCluster, config: ExperimentConfig) -> CulpritReport | None:
    """Explain a layout; in fp32 without a spread first, with which no less is allowed."""
    try:
        if config.runtime.precision is None:
            exact = compute_reference(cluster, config, nudges=())
            report = explain(cluster, config, reference=exact)
            if report.passed:
                return report
        return explain(cluster, config)
    except RankError as error:
        print(f"{config.name}: {str(error)[-800:]}", flush=True)
        return None


def _line(one: Drawn, seconds: float) -> str:
    said = "FAILED" if one.report is None else "ok" if one.report.passed else one.report.verdict
    return f"{one.number} {one.precision} {seconds:.1f} s, {one.ratio:.2f} of the spread: {said}"


def alarms(number: int = NUMBER, first: int = 0) -> Iterator[dict[str, Any]]:
    """Count false alarms, and say how far right layouts are from one process."""
    layouts: list[Drawn] = []
    for one in drawn(range(first, first + number)):
        layouts.append(one)
        wrong = [f"{one.number} {one.precision}" for one in layouts if not one.passed]
        print(f"    {len(layouts)} of {2 * number}: {len(wrong)} false alarms {wrong}", flush=True)
    for precision in ("fp32", "bf16"):
        own = [one for one in layouts if one.precision == precision]
        wrong = [one.number for one in own if not one.passed]
        ratios = sorted(one.ratio for one in own)
        yield {
            "name": f"false alarms in {len(own)} right layouts, {precision} {wrong or ''}",
            "measured": len(wrong), "target": 0, "unit": "", "ok": not wrong,
        }  # fmt: skip
        yield {
            "name": f"difference over spread, {precision}: median "
            f"{statistics.median(ratios):.2f}, 90th percentile "
            f"{ratios[int(0.9 * (len(ratios) - 1))]:.2f}, largest",
            "measured": ratios[-1], "target": None, "unit": "", "ok": True,
        }  # fmt: skip


def cost() -> Iterator[dict[str, Any]]:
    """Compare explain with verify, and a watched step with a bare one."""
    clock, cpu, memory = _explained_and_verified(digits_config((2, 2), (2, 2)))
    yield _row("verify --explain over verify, 2 steps on 4 ranks, by the clock", clock)
    yield _row("the same, CPU time of the engines", cpu)
    yield _row("the same, most memory of an engine", memory)
    for name, ratio in _watched().items():
        yield _row(name, ratio, None if "writing" in name else 1.3)


def _explained_and_verified(config: ExperimentConfig) -> tuple[float, float, float]:
    """Return medians of pairs: by the clock, CPU time of the engines, and their most memory."""
    with EngineCluster(n=4, progress=False) as cluster:

        def spent(run: Callable[..., Any]) -> tuple[float, float]:
            clock, before = time.perf_counter(), sum(cluster.run(time.process_time, world_size=4))
            run(cluster, config, steps=2)
            after = sum(cluster.run(time.process_time, world_size=4))
            return time.perf_counter() - clock, after - before

        verify(cluster, config, steps=2)
        least = max(cluster.run(_most_memory, world_size=4))
        explain(cluster, config, steps=2)
        most = max(cluster.run(_most_memory, world_size=4))
        ratios = []
        for _ in range(PAIRS):
            (plain, plain_cpu), (clock, cpu) = spent(verify), spent(explain)
            ratios.append((clock / plain, cpu / plain_cpu))
            print(f"    explain over verify, by the clock and CPU: {ratios[-1]}", flush=True)
    clocks, cpus = zip(*ratios, strict=True)
    return statistics.median(clocks), statistics.median(cpus), most / least


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _watched() -> dict[str, float]:
    """Return CPU time of a recorded step over that of a bare one, and of what follows."""
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(16, 128, 256)

    def step() -> float:
        begun = time.process_time()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        return time.process_time() - begun

    ratios: dict[str, list[float]] = {name: [] for name in ("recorded", "later", "writing")}
    step()
    for _ in range(PAIRS):
        bare = step()
        with tempfile.TemporaryDirectory() as folder:
            begun = time.process_time()
            with mimokit.watch(model, Path(folder), optimizer=optimizer):
                recorded, later = step(), step()
            writing = time.process_time() - begun - recorded - later
        for name, seconds in (("recorded", recorded), ("later", later), ("writing", writing)):
            ratios[name].append(seconds / bare)
    medians = {name: statistics.median(found) for name, found in ratios.items()}
    return {
        "a step that is recorded over a bare one, CPU time": medians["recorded"],
        "a later step of a watched loop over a bare one": medians["later"],
        "hooks and writing the recording over a bare step": medians["writing"],
    }


def _row(name: str, ratio: float, target: float | None = None) -> dict[str, Any]:
    reached = target is None or ratio <= target
    return {"name": name, "measured": ratio, "target": target, "unit": "x", "ok": reached}


def rows() -> Iterator[dict[str, Any]]:
    """Yield the figures of a few faults, and of the cost."""
    yield from faults([fault.name for fault in FAULTS[:FEW]])
    yield from cost()


def main() -> None:
    """Run what is named, or all."""
    what, *rest = [*sys.argv[1:], ""][:1] + sys.argv[2:]
    if what in ("faults", ""):
        show("Planted faults", list(faults(rest)))
    if what in ("alarms", ""):
        show("Right layouts", list(alarms(*map(int, rest))))
    if what in ("cost", ""):
        show("Cost", list(cost()))


if __name__ == "__main__":
    main()
