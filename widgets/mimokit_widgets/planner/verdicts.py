"""What is predicted for layouts of a planner, computed once for each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted, parameters_text
from mimokit_widgets.planner.draft import Draft, supposed_of
from mimokit_widgets.planner.figures import shares_of
from mimokit_widgets.planner.outcome import DraftOutcome, evaluate, resolved_config

if TYPE_CHECKING:
    from mimokit.prediction import Prediction
    from mimokit.prediction.verdict import Verdict
    from mimokit_widgets.planner.session import Session

MOST_KEPT = 32
Work = tuple[int, Any, int, str, int]
"""Sequence length, model, samples of a step, GPU and GPUs; other layouts are not compared."""
UNLIKE: tuple[Callable[[Any, Any], str], ...] = (
    lambda now, before: f"sequence length {now:,} instead of {before:,}",
    lambda now, before: "another model",
    lambda now, before: f"{counted(now, 'sample')} per step instead of {before:,}",
    lambda now, before: f"{now} instead of {before}",
    lambda now, before: f"{counted(now, 'GPU')} instead of {before:,}",
)
Value = TypeVar("Value")


def asked_of(config: ExperimentConfig, plan: LayoutPlan, supposed: PredictionConfig) -> Any:
    """Return the arguments of `predict` that describe a layout: model, layout, workload and GPU.

    Raises:
        ConfigError: it cannot be predicted.
    """
    # The predictor is slow to import, so it is imported when the first layout is shown.
    from mimokit.architecture.from_config import model_of_config
    from mimokit.interop import layout_of_config, workload_of_config

    resolved = resolved_config(config, plan)
    model = model_of_config(resolved.model)
    return model, layout_of_config(resolved), workload_of_config(resolved), supposed.chosen_gpu


def predicted(config: ExperimentConfig, plan: LayoutPlan, supposed: PredictionConfig) -> Prediction:
    """Return the predicted step of a layout.

    Args:
        plan: its plan; every data_parallel is known there.
        supposed: the GPU, its price and the software.

    Raises:
        ConfigError: it cannot be predicted.
    """
    return _predicted(asked_of(config, plan, supposed), supposed)


def _predicted(asked: Any, supposed: PredictionConfig) -> Prediction:
    from mimokit.prediction import predict

    price = supposed.price_per_gpu_hour
    return predict(*asked, software=supposed.software, price_per_gpu_hour=price)


class Verdicts:
    """Outcomes and verdicts of the last drafts that were asked for."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[str, DraftOutcome] = OrderedDict()
        self._verdicts: OrderedDict[str, Verdict | str] = OrderedDict()
        self._asked: OrderedDict[str, Any] = OrderedDict()

    def copy(self) -> Verdicts:
        """Return others that begin with what these know."""
        other = Verdicts()
        other._outcomes.update(self._outcomes)
        other._verdicts.update(self._verdicts)
        other._asked.update(self._asked)
        return other

    def outcome_of(self, draft: Draft) -> DraftOutcome:
        """Return what follows from a draft."""
        return _kept(self._outcomes, draft.key, lambda: evaluate(draft))

    def verdict_of(self, draft: Draft) -> Verdict | str:
        """Return what a draft comes down to, or the sentence that says why nothing is predicted."""
        return _kept(self._verdicts, draft.key, lambda: self._predict(draft))

    def unlike(self, now: Draft, before: Draft) -> str:
        """Return in what the work of two layouts differs, "" where a step of both does the same.

        What is not predicted is of no work.
        """
        work, earlier = self._work_of(now), self._work_of(before)
        if work is None or earlier is None:
            return ""
        return next(
            (
                words(part, part_before)
                for part, part_before, words in zip(work, earlier, UNLIKE, strict=True)
                if part != part_before
            ),
            "",
        )

    def model_text(self, draft: Draft) -> str:
        """Return how large the model is; "" if it is not known."""
        work = self._work_of(draft)
        return "" if work is None else parameters_text(work[1][0].parameters)

    def _work_of(self, draft: Draft) -> Work | None:
        layout, asked = self.outcome_of(draft).layout, self._asked_of(draft)
        if layout is None or isinstance(asked, str):
            return None
        model, _, load, gpu = asked
        model = replace(model, name=""), load.inputs, load.frozen
        return load.seq_length, model, load.global_batch_size, gpu, layout.plan.world_size

    def _asked_of(self, draft: Draft) -> Any:
        return _kept(self._asked, draft.key, lambda: self._ask(draft))

    def _ask(self, draft: Draft) -> Any:
        """Return what `predict` is asked about a draft, or why it is asked nothing."""
        outcome = self.outcome_of(draft)
        if outcome.layout is None:
            return outcome.problems[0].sentence
        try:
            return asked_of(outcome.layout.config, outcome.layout.plan, supposed_of(draft))
        except ConfigError as error:
            return str(error)

    def _predict(self, draft: Draft) -> Verdict | str:
        asked = self._asked_of(draft)
        if isinstance(asked, str):
            return asked
        try:
            return _predicted(asked, supposed_of(draft)).verdict
        except ConfigError as error:
            return str(error)


def _kept(values: OrderedDict[str, Value], key: str, make: Callable[[], Value]) -> Value:
    if key not in values:
        values[key] = make()
        while len(values) > MOST_KEPT:
            values.popitem(last=False)
    values.move_to_end(key)
    return values[key]


def verdict_mapping(session: Session) -> dict[str, Any]:
    """Return what the last valid layout comes to; empty where nothing is predicted."""
    draft = session.valid_draft
    verdict = "" if draft is None else session.verdicts.verdict_of(draft)
    if isinstance(verdict, str):
        return {}
    return {**asdict(verdict), "peak": verdict.peak, "fits": verdict.fits}


def strip_of(
    verdict: Verdict | str, before: Verdict | str | None, against: str, unlike: str, gpu: str
) -> dict[str, Any]:
    """Return the strip that the browser draws.

    Args:
        gpu: for which it is predicted.
        against: with what it is compared: "with the layout before the last edit".
        unlike: why it is not compared; empty where it is.

    Returns:
        `lines`, `bar` (module and share of the GPU's memory), `against`, `fits`, `supposed`; or
        `sentence`.
    """
    from mimokit.prediction.verdict import verdict_lines

    if isinstance(verdict, str):
        return {"sentence": f"Nothing is predicted: {verdict}", "lines": [], "bar": []}
    known = None if isinstance(before, str) or unlike else before
    lines = [asdict(line) | {"band": ""} for line in verdict_lines(verdict, known)]
    for line in lines:
        if line["key"] == "seconds":
            line["band"] = f"±{100 * (verdict.high - verdict.low) / 2 / verdict.seconds:.0f} %"
    told = f"Compared {against}." if any(line["change"] for line in lines) else ""
    return {
        "sentence": "",
        "against": f"Not compared {against}: {unlike}." if unlike else told,
        "lines": lines,
        "gpu": gpu,
        "bar": [list(share) for share in shares_of(verdict)],
        "fits": verdict.fits,
        "supposed": " ".join(verdict.supposed),
    }
