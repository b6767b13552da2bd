"""A search for layouts that goes on while the planner stays usable."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.extra_rooms import MissingRoomError, import_extra
from mimokit_widgets.planner.limits import MOST_RANKS

if TYPE_CHECKING:
    from mimokit.architecture.modules import Model
    from mimokit.layout_search import SearchProgress, SearchResult
    from mimokit.prediction import Prediction
    from mimokit.workload import SampleMix

    Searched = ExperimentConfig | Model

Status = Literal["idle", "running", "cancelling", "done", "failed"]
GOING_ON: tuple[Status, ...] = ("running", "cancelling")


@dataclass(frozen=True)
class SearchState:
    """How a search stands.

    Attributes:
        status: idle before the first one; failed says that the last one found nothing.
        share: of it that is done, from 0 to 1; at 1 the best layouts are being simulated.
        evaluated: layouts so far.
        sentence: why it failed; empty otherwise.
        searched: the config whose model was searched, or None.
        telling: the found layouts whose runs would teach most about the user's cluster.
    """

    status: Status = "idle"
    share: float = 0.0
    evaluated: int = 0
    sentence: str = ""
    result: SearchResult | None = None
    searched: ExperimentConfig | None = None
    telling: tuple[Prediction, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended yet."""
        return self.status in GOING_ON

    @property
    def shown(self) -> tuple[Prediction, ...]:
        """The found layouts that the view shows, in its order."""
        from mimokit_widgets.view_models.found_layouts import layouts_shown

        return () if self.result is None else layouts_shown(self.result, self.telling)

    def to_json(self) -> dict[str, Any]:
        """Return what the browser draws."""
        from mimokit_widgets.view_models.found_layouts import found_layouts

        layouts = None if self.result is None else found_layouts(self.result, self.telling)
        shown = {"status": self.status, "share": self.share, "evaluated": f"{self.evaluated:,}"}
        return {**shown, "sentence": self.sentence, "found": layouts}


def _telling(result: SearchResult) -> tuple[Prediction, ...]:
    try:
        return result.telling()
    except MissingRoomError:  # nothing is calibrated, so no run tells more than another
        return ()


def without_workload(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config whose samples are all alike."""
    return config.model_copy(update={"data": config.data.model_copy(update={"workload": None})})


class BackgroundSearch:
    """One search at a time, on a separate thread.

    Attributes:
        state: how it stands.
        changed: called whenever that has changed, also from the search's thread.
    """

    def __init__(self, changed: Callable[[], object] = lambda: None) -> None:
        self.state = SearchState()
        self.changed = changed
        self._cancelled = threading.Event()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(
        self,
        model: Searched,
        gpus: int,
        supposed: PredictionConfig,
        mix: SampleMix | None = None,
    ) -> None:
        """Begin to search the layouts of a model, unless a search goes on.

        Args:
            model: a config with every data_parallel known; or the model that a file describes,
                with a batch for so many GPUs.
            supposed: GPU, software and price.
            mix: samples, of which the mean is searched for; None: those of the config.
        """
        if self.state.goes_on:
            return
        if not 1 <= gpus <= MOST_RANKS:
            self.refuse(
                f"Search: GPUs is {gpus:,}; it must be a whole number from 1 to {MOST_RANKS:,}."
            )
            return
        self._cancelled = threading.Event()
        self._become(SearchState("running"))
        self._thread = threading.Thread(
            target=self._run,
            args=(model, gpus, supposed, mix),
            name="LayoutPlanner search",
            daemon=True,
        )
        self._thread.start()

    def cancel(self) -> None:
        """Ask the search that goes on to end with what it has."""
        if self.state.status == "running":
            self._cancelled.set()
            self._change(status="cancelling")

    def refuse(self, sentence: str) -> None:
        """Say why no search begins; what the last one found stays."""
        self._change(status="failed", sentence=sentence)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the search that goes on."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(
        self,
        model: Searched,
        gpus: int,
        supposed: PredictionConfig,
        mix: SampleMix | None = None,
    ) -> None:
        config = model if isinstance(model, ExperimentConfig) else None
        try:
            result = self._search(model, gpus, supposed, mix)
            telling = _telling(result)
        except (ConfigError, MissingRoomError) as error:
            self._become(SearchState("failed", sentence=" ".join(str(error).splitlines())))
        except Exception as error:  # reported in the view, as nothing else sees it
            what = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._become(SearchState("failed", sentence=f"The search ended with an error: {what}"))
        else:
            state = SearchState("done", 1.0, result.evaluated, "", result, config, telling)
            self._become(state)

    def _search(
        self, model: Searched, gpus: int, supposed: PredictionConfig, mix: SampleMix | None
    ) -> SearchResult:
        # Nobody should wait for the search to be imported before it is asked for.
        from mimokit import search
        from mimokit.architecture.from_config import model_of_config
        from mimokit.prediction.sample_loads import with_means
        from mimokit.prediction.task import workload_of_config

        # What was cut stands in the result; a thread has no cell to warn below.
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        workload = None
        if not isinstance(model, ExperimentConfig):
            plans = import_extra("experiment.plan_of_model", "A search")
            workload = plans.workload_of_model(gpus)
        if mix is not None:
            assert isinstance(model, ExperimentConfig)
            network = model_of_config(model.model, model.name)
            workload = with_means(workload_of_config(without_workload(model)), mix, network)
        return search(
            model,
            gpus=gpus,
            workload=workload,
            gpu=supposed.chosen_gpu,
            software=supposed.software,
            price_per_gpu_hour=supposed.price_per_gpu_hour,
            progress=self._progress,
            cancelled=self._cancelled.is_set,
        )

    def _progress(self, progress: SearchProgress) -> None:
        self._change(share=progress.share, evaluated=progress.evaluated)

    def _change(self, **fields: Any) -> None:
        with self._turn:  # two threads may change different fields
            self.state = replace(self.state, **fields)
        self.changed()

    def _become(self, state: SearchState) -> None:
        with self._turn:
            self.state = state
        self.changed()
