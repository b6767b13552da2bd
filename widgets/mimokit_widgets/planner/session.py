"""The state of a planner, without a browser: takes edits, keeps the last valid layout."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig, Problem
from mimokit.config.yaml_file import parse_yaml
from mimokit.config_files.concise import written_text
from mimokit.config_files.loading import SWEEP
from mimokit.prediction.hardware import hardware_names
from mimokit.units import counted, shown
from mimokit_widgets.planner.background_search import BackgroundSearch
from mimokit_widgets.planner.draft import Draft, History, canonical, same_layout, supposed_of
from mimokit_widgets.planner.field_errors import FieldMessage, field_errors_of
from mimokit_widgets.planner.found_layout import config_with
from mimokit_widgets.planner.hold import GaveWay, Hold, Pin
from mimokit_widgets.planner.limits import MOST_CHARACTERS, MOST_MODULES
from mimokit_widgets.planner.messages import ACTIONS, Message, Reply
from mimokit_widgets.planner.opened_model import asked_gpus, model_in, planned_words
from mimokit_widgets.planner.outcome import (
    DraftOutcome,
    ValidLayout,
    frame_question,
    resolved_config,
)
from mimokit_widgets.planner.paths import SIZES, mapping_at
from mimokit_widgets.planner.samples import SampleQuestion, first_source
from mimokit_widgets.planner.verdicts import Verdicts
from mimokit_widgets.view_models.frame_session import FrameSession

if TYPE_CHECKING:
    from mimokit.layout_search import SearchTask
    from mimokit.planning.types import LayoutPlan
    from mimokit.prediction import Layout

NOTHING = GaveWay()


class Session:
    """What a planner knows.

    Attributes:
        valid: the layout of the last draft that was accepted, or None if none ever was.
        valid_draft: that draft.
        problems: what is wrong with the draft that is shown; empty if it was accepted.
        field_errors: the same, with places and buttons.
        pins: the layouts to compare with.
        holding: whether an edit of a size keeps the GPUs and the samples of a step.
        gave: what gave way to the edit that made the draft.
        for_all: whether an edit of a size is one of all modules.
        before: the draft that was valid before the last edit, or None.
        notice: a sentence about what was asked for and not done; empty otherwise.
        again: the message that does it anyway, or None.
        selected: the rank that is looked at, or None.
        sample: the sample that is followed, and whether backward; None if none is.
        by_node: whether traffic is shown between nodes.
        frames: what is asked about frames, once that picture has been opened; None before.
        samples: what is asked about samples, likewise.
        samples_search: the search for the best layout for these samples.
        search_gpus: how many GPUs it may take, as typed; empty for as many as the world has.
        opened: the file of a model whose best layout is searched, to be taken; empty otherwise.
        loaded: the layout that was loaded last, and the draft that it made.
        edited: the path of the field that made the draft, empty for any other cause.
        count: of the drafts that were shown so far.
        serial: what the browser calls the last message that was handled.
    """

    def __init__(self, draft: Draft) -> None:
        self.history: History = History(draft)
        self.valid: ValidLayout | None = None
        self.valid_draft: Draft | None = None
        self.problems: tuple[Problem, ...] = ()
        self.field_errors: tuple[FieldMessage, ...] = ()
        self.pins: list[Pin] = []
        self.holding = True
        self.gave = GaveWay()
        self.for_all = False
        self.before: Draft | None = None
        self.verdicts = Verdicts()
        self.notice = ""
        self.again: dict[str, Any] | None = None
        self.tab = "ranks"
        self.selected: int | None = None
        self.sample: tuple[int, bool] | None = None
        self.kind = "all"
        self.by_node = False
        self.frames: FrameSession | None = None
        self._frames_of: LayoutPlan | None = None
        self.samples: SampleQuestion | None = None
        self.search: BackgroundSearch = BackgroundSearch()
        self.samples_search: BackgroundSearch = BackgroundSearch()
        self.search_gpus = ""
        self.opened = ""
        self.loaded: tuple[Layout, Draft] | None = None
        self.edited: list[str] = []
        self.serial = ""
        self.count = 0
        self._written: set[Path] = set()
        self._evaluate()

    def at_rest(self) -> Session:
        """Return a session that no edit of this one reaches: another thread may look at it."""
        still = copy.copy(self)
        still.history, still.verdicts = copy.copy(self.history), self.verdicts.copy()
        still.frames, still.pins = copy.copy(self.frames), [*self.pins]
        still.samples = copy.deepcopy(self.samples)
        return still

    @property
    def draft(self) -> Draft:
        """The draft that is shown."""
        return self.history.draft

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a node in the last accepted draft."""
        return int(str(self.valid_draft.ranks_per_node)) if self.valid_draft else 8

    @property
    def supposed(self) -> PredictionConfig:
        """What memory and time are predicted for: it stands in the draft, as the layout does."""
        return supposed_of(self.draft)

    @property
    def gpu_names(self) -> list[str]:
        """The GPUs to choose from; a hardware file that the draft names is one of them."""
        return list(dict.fromkeys((*hardware_names(), self.supposed.chosen_gpu)))

    def take(self, draft: Draft, field: object = None, gave: GaveWay = NOTHING) -> None:
        """Let a draft follow the one that is shown; edits of the same field are one step.

        Args:
            gave: what gave way to the edit.
        """
        self.gave = gave
        if repr(draft) == repr(self.draft):  # equal dicts may differ in order
            return
        if self.history.record(draft, field):
            self.before = self.valid_draft
        self._evaluate()

    def undo(self) -> None:
        """Go back one step."""
        self.before, self.gave = self.valid_draft, NOTHING
        self.history.undo()
        self._evaluate()

    def redo(self) -> None:
        """Go forward one step."""
        self.before, self.gave = self.valid_draft, NOTHING
        self.history.redo()
        self._evaluate()

    def handle(self, message: Message) -> Reply:
        """Do what a message from the browser says; return what to answer, if anything."""
        does = ACTIONS.get(str(message.get("type")))
        if does is None:
            return None
        self.notice, self.again, self.edited = "", None, []
        self.serial = str(message.get("serial") or self.serial)
        return does(self, message)

    def say(self, sentence: str) -> None:
        """Tell the user why something was not done."""
        self.notice = sentence

    def save(self, file: str | os.PathLike[str], *, replace: bool = False) -> Path | None:
        """Write the layout to a YAML file; a file that was not written here needs `replace`.

        Returns:
            Its path, or None with a notice where it was not written.
        """
        if self.problems or self.valid is None:
            self.say(self.in_the_way())
            return None
        path = Path(file)
        there = os.path.lexists(path)
        if there and not os.path.isfile(path):
            self.say(
                f"{path} is a folder, a pipe, a device or a link to nothing; nothing was written."
            )
            return None
        if there and path.resolve() not in self._written and not replace:
            self.say(f"There is a file {path} already; nothing was written.")
            self.again = {"type": "save", "path": str(path), "replace": True}
            return None
        try:
            path.write_text(written_text(self.valid.config, path), encoding="utf-8")
        except OSError as error:
            self.say(f"{path} could not be written: {error.strerror or error}.")
            return None
        except ValueError:  # of a zero byte or half a character
            self.say(f"No file can have the name {shown(str(path))}; nothing was written.")
            return None
        self._written.add(path.resolve())
        self.say(f"Written to {path}.")
        return path

    def load(self, text: str, name: str) -> None:
        """Take the sections of a YAML text; one that is no YAML leaves everything as it was."""
        if len(text) > MOST_CHARACTERS:
            self.say(
                f"File '{name}': it has {len(text):,} characters; the planner reads at most "
                f"{MOST_CHARACTERS:,}."
            )
            return
        try:
            if self._plans(text, name):
                return
            content = parse_yaml(text, Path(name))
        except ConfigError as error:
            self.say(" ".join(str(error).splitlines()))
            return
        count = len(mapping_at(content, SIZES))
        if count > MOST_MODULES:
            self.say(
                f"File '{name}': module_parallelisms has {count:,} modules; the planner shows at "
                f"most {MOST_MODULES}."
            )
            return
        if content.get("extends"):
            self.say(
                f"File '{name}': it extends {content['extends']}, which is not at hand here; only "
                "what the file itself says was read."
            )
        if content.get(SWEEP):
            self.say(f"File '{name}': it has a sweep; the planner shows the layout that it varies.")
        self.take(self.draft.with_content(canonical(content, Path(name).stem)))

    def _plans(self, text: str, name: str) -> bool:
        """Whether a text is a model's config.json, of which the best layout is now searched."""
        model = model_in(text, name)
        if model is None:
            return False
        self.tab = "search"
        gpus = asked_gpus(self.search_gpus, self.valid.plan.world_size if self.valid else 8)
        if self.search.state.goes_on:
            self.say(f"File '{name}': a search goes on; cancel it, or wait for its end.")
        elif isinstance(gpus, str):
            self.search.refuse(gpus)
        else:
            self.opened = name
            self.search.start(model, gpus, self.supposed)
        return True

    def take_opened(self) -> bool:
        """Take the best layout of a model whose file was opened; whether one was found."""
        state, name = self.search.state, self.opened
        if not name or state.status not in ("done", "failed"):
            return False
        self.opened = ""
        if state.status == "failed" or state.result is None:  # the sentence stands in its tab
            return False
        best, task = state.result.best.layout, state.result.task
        self.load_layout(best, task)
        self.notice = self.notice or " ".join(planned_words(name, best.gpus, task))
        return True

    def load_layout(
        self, layout: Layout, task: SearchTask, searched: ExperimentConfig | None = None
    ) -> None:
        """Take a layout that a search found, as one edit.

        Args:
            searched: a config whose model was searched.
        """
        try:
            config = config_with(layout, task, self.supposed, self.resolved, searched)
        except ConfigError as error:
            self.say(str(error))
            return
        world = self.draft.world_size if self.draft.world_size == layout.gpus else None
        self.take(Draft(config.to_mapping(), world, self.ranks_per_node))
        self.loaded = (layout, self.draft)

    @property
    def loaded_layout(self) -> Layout | None:
        """The layout that was loaded last, None where another one is shown now."""
        if self.loaded is None or not same_layout(self.loaded[1], self.draft):
            return None
        return self.loaded[0]

    @property
    def resolved(self) -> ExperimentConfig | None:
        """The config of the last accepted draft with nothing left open, None if none ever was."""
        valid = self.valid
        return None if valid is None else resolved_config(valid.config, valid.plan)

    def look_at_frames(self) -> FrameSession | None:
        """Return the questions about frames, new ones for another layout; None without images.

        The frames of samples that were typed or dragged stay, those of the config follow it.
        """
        valid = self.valid
        if valid is None:
            return None
        if self.frames is None or self._frames_of is not valid.plan:
            question = frame_question(valid.config, valid.plan, self.supposed)
            if question is None:
                return None
            if self.frames is not None and self.frames.edited:
                question = question.with_frames_of(self.frames.question)
                self.frames.take(question)
            else:
                self.frames = FrameSession(question)
            self._frames_of = valid.plan
        return self.frames

    def look_at_samples(self) -> SampleQuestion:
        """Return the question about samples: those of the config, else of a published mix."""
        if self.samples is None:
            assert self.resolved is not None, "no tab is open before a layout is valid"
            self.samples = SampleQuestion(first_source(self.resolved))
        return self.samples

    def pin(self, layout: Draft) -> None:
        """Compare a layout with the one in the fields; one that is pinned already is not again."""
        if all(layout != pin.followed_by(self.draft) for pin in self.pins):
            self.pins.append(Pin(layout, self.draft))
        self.tab = "compare"

    @property
    def pinned(self) -> list[tuple[Draft, DraftOutcome]]:
        """The pinned layouts, with the model and the batch that stand in the fields."""
        now = self.valid_draft or self.draft
        drafts = [pin.followed_by(now) for pin in self.pins]
        return [(draft, self.verdicts.outcome_of(draft)) for draft in drafts]

    def _evaluate(self) -> None:
        self.count += 1
        outcome = self.verdicts.outcome_of(self.draft)
        self.problems = outcome.problems
        self.field_errors = field_errors_of(
            outcome.problems,
            self.draft,
            self.valid_draft,
            tuple(self.edited),
            self.hold_of(self.draft),
            holding=self.holding,
        )
        if outcome.layout is not None:
            self.valid, self.valid_draft = outcome.layout, self.draft
            plan = outcome.layout.plan
            if self.selected is not None and self.selected >= plan.world_size:
                self.selected = None
            samples = plan.batch.samples_per_microbatch
            if self.sample is not None and self.sample[0] >= samples:
                self.sample = (samples - 1, self.sample[1])

    @property
    def model_text(self) -> str:
        """How large the model of the last accepted draft is."""
        return "" if self.valid_draft is None else self.verdicts.model_text(self.valid_draft)

    def hold_of(self, draft: Draft) -> Hold | None:
        """Return the GPUs and samples that sizes keep: those of a draft, else of the last valid."""
        outcome_of = self.verdicts.outcome_of
        layout = outcome_of(draft).layout or self.valid
        return None if layout is None else Hold(layout.plan, outcome_of)

    def in_the_way(self) -> str:
        """Return why a layout with problems cannot be used, as a sentence."""
        count = len(self.problems)
        them = "them" if count > 1 else "it"
        return f"The layout has {counted(count, 'problem')}; right {them} first."

    @property
    def file(self) -> str:
        """The file that the layout is saved to unless another is named."""
        name = self.draft.value_at(("name",))
        return f"{name if isinstance(name, str) and name.strip() else 'experiment'}.yaml"
