"""`LayoutPlanner`: edit a layout and see everything follow."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import traitlets

from mimokit.charts.browser.saved_view import saved_view
from mimokit.config import ConfigError, ExperimentConfig
from mimokit_widgets._widget import ByIdentity, PersistentWidget, state_of
from mimokit_widgets.modules import saved_modules
from mimokit_widgets.planner.advice import advice_of
from mimokit_widgets.planner.ahead import screens_ahead
from mimokit_widgets.planner.code import as_torchrun
from mimokit_widgets.planner.draft import RANKS_PER_NODE, Draft, content_of, start
from mimokit_widgets.planner.inputs import inputs
from mimokit_widgets.planner.paths import SIZES
from mimokit_widgets.planner.saved_answers import saved_answers
from mimokit_widgets.planner.screen import screen_of
from mimokit_widgets.planner.session import Session
from mimokit_widgets.planner.verdicts import verdict_mapping

if TYPE_CHECKING:
    from mimokit.layout_search import SearchResult
    from mimokit.prediction import Layout

Source = ExperimentConfig | Mapping[str, Any] | str | os.PathLike[str]


def _as_mapping(config: ExperimentConfig | None, _: object) -> dict[str, Any] | None:
    return None if config is None else config.to_mapping()


SECONDS_BEFORE_ADVICE = 0.12
STYLES = ("shared.css", "found.css", "frame_balance.css", "timeline.css", "layout_planner.css")


class LayoutPlanner(PersistentWidget, entry="layout_planner.js", styles=STYLES):
    """A layout in fields, and all that follows from it in pictures.

    Every edit is planned at once. While an edit is rejected, `problems` says why and everything
    else stays at the last layout that was accepted.

        planner = LayoutPlanner("plan.yaml")
        planner.plan                                 # of the last valid layout
        planner.observe(callback, "plan")            # what comes
        planner.config = "preset:llava_7b_colocated" # from code to the view

    Attributes:
        config: the last accepted config. It can be set to a config, a mapping in the form of a
            YAML file, the path of one, or `preset:NAME`; one with problems is shown with them, and
            raises nothing. Frontends have it as a mapping.
        plan: its plan.
        prediction: what its step comes to: the fields of `Verdict`, `peak` and `fits`; empty where
            nothing is predicted.
        picked: the rank that is looked at, or None; it can be set.
        shown: in marimo, how many layouts came before the one that the browser shows. It comes from
            there, so that the cells run again that read the planner.
        problems: why the layout in the fields is rejected; empty if it was accepted.
    """

    config = ByIdentity().tag(sync=True, to_json=_as_mapping)
    prediction = traitlets.Dict(read_only=True).tag(sync=True)
    shown = traitlets.Int(0).tag(sync=True, echo_update=False)
    picked = traitlets.Int(None, allow_none=True).tag(sync=True)
    plan = ByIdentity(read_only=True)
    problems = ByIdentity((), read_only=True)
    _inputs = traitlets.Dict().tag(sync=True)
    _state = traitlets.Dict().tag(sync=True)
    _search = traitlets.Dict().tag(sync=True)
    _advice = traitlets.Dict().tag(sync=True)
    _ahead = traitlets.Dict().tag(sync=True)
    _asked = traitlets.List(traitlets.Unicode()).tag(sync=True, echo_update=False)

    def __init__(
        self,
        config: Source | None = None,
        *,
        world_size: int | None = None,
        ranks_per_node: int = RANKS_PER_NODE,
        **options: Any,
    ) -> None:
        """Open a layout.

        Args:
            config: what `config` may be set to; None begins with a vision-language model.
            world_size: ranks of the world, or None for as many as the modules need.
            ranks_per_node: ranks that share a machine.

        Raises:
            ConfigError: the file cannot be read as YAML at all.
        """
        content = start() if config is None else content_of(config)
        self._turn = threading.RLock()
        self._session = Session(Draft(content, world_size, ranks_per_node))
        self._session.search.changed = self._show_search
        self._session.samples_search.changed = self._show_samples
        self._settling = False
        self._valued: tuple[str, ...] = ()
        super().__init__(_inputs=inputs(), **options)
        self.observe(lambda _: self._advise(self._state), ["shown", "_asked"])

    def open(self) -> None:
        """Connect to the browser, after the first state is set."""
        self._settle()
        super().open()

    @property
    def world_size(self) -> int | None:
        """Ranks of the world as asked for, None for as many as the modules need."""
        asked = self._session.draft.world_size
        return asked if isinstance(asked, int) else None

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a machine."""
        return self._session.ranks_per_node

    def undo(self) -> None:
        """Go back one edit."""
        self._do({"type": "undo"})

    def redo(self) -> None:
        """Go forward one edit."""
        self._do({"type": "redo"})

    def select(self, rank: int | None) -> None:
        """Look at a rank, or at none."""
        self._do({"type": "select", "rank": rank})

    def show(self, tab: str) -> None:
        """Open a picture.

        ranks, batch, traffic, frames, samples, prediction, search or compare.
        """
        self._do({"type": "tab", "name": tab})

    def load_layout(self, layout: Layout, result: SearchResult) -> None:
        """Load a layout that a search found, as one edit.

        The rest of the config stays where it has the model and the batch that were searched; else
        it says what the search knew. A layout that no config can express is rejected in the view.
        """
        with self._turn:
            self._session.notice = ""
            self._session.load_layout(layout, result.task)
            self._settle()

    @property
    def loaded_layout(self) -> Layout | None:
        """The layout that was loaded last, None once another one stands in the fields."""
        return self._session.loaded_layout

    def compare_with(self, config: Source | None = None) -> None:
        """Compare a layout with the one in the fields: the current one, or another.

        Any number of layouts are compared. Later edits of the model and of the batch hold for all.

        Raises:
            ConfigError: the other one has problems.
        """
        with self._turn:
            other = self._session
            if config is not None:
                other = Session(Draft(content_of(config), None, self.ranks_per_node))
            if other.problems or other.valid_draft is None:
                raise ConfigError(other.problems)
            self._session.pin(other.valid_draft)
            self._settle()

    def save(self, path: str | os.PathLike[str] | None = None, *, replace: bool = True) -> Path:
        """Write the layout as YAML, by default to its name with the ending .yaml.

        Raises:
            ConfigError: the layout has problems.
            OSError: the file cannot be written, or is there already and not to be replaced.
        """
        with self._turn:
            if self._session.problems:
                raise ConfigError(self._session.problems)
            written = self._session.save(path or self._session.file, replace=replace)
            notice = self._session.notice
            self._settle()
        if written is None:
            raise OSError(notice)
        return written

    def as_torchrun(self) -> str:
        """Return the command that trains the layout once it is saved."""
        return as_torchrun(self.config, self.plan, self.ranks_per_node, self._session.file)

    @traitlets.validate("config")  # type: ignore[untyped-decorator]
    def _take_config(self, proposal: Mapping[str, Any]) -> Any:
        if self._settling:
            return proposal["value"]
        with self._turn:
            draft = self._session.draft
            content = content_of(proposal["value"])
            self._session.edited = []
            self._session.take(Draft(content, draft.world_size, draft.ranks_per_node))
            self._settle()
            return self._session.valid.config if self._session.valid else None

    def _on_message(self, _: Any, content: Mapping[str, Any], __: Any) -> None:
        self._do(content)

    def _advise(self, screen: Mapping[str, Any]) -> None:
        """Tell what else could be than a screen, and what the next key shows, while it is shown."""
        with self._turn:
            if self._state is not screen:
                return
            path = tuple(self._asked)
            self._valued = path if path[:2] == SIZES else self._valued
            self._advice = advice_of(self._session, self._valued)
            session = self._session.at_rest()
        ahead = screens_ahead(session, path) if path and self._advice["follows"] else {}
        with self._turn:
            if self._state is screen:
                self._ahead = ahead

    def _do(self, message: Mapping[str, Any]) -> None:
        with self._turn:
            try:
                reply = self._session.handle(message)
            finally:
                self._settle()  # the browser sends nothing more until a message is answered
        if reply is not None:
            self.send(reply)

    def _settle(self) -> None:
        """Tell the browser and all that observe, in one message, once all stands."""
        session = self._session
        screen = screen_of(session)
        self._settling = True
        try:
            with self.hold_sync(), self.hold_trait_notifications():
                self._state, self.picked, self._ahead = screen, session.selected, {}
                self.set_trait("prediction", verdict_mapping(session))
                self.set_trait("problems", session.problems)
                if session.valid is not None and session.valid.plan is not self.plan:
                    self.set_trait("config", session.valid.config)
                    self.set_trait("plan", session.valid.plan)
        finally:
            self._settling = False
        if self._advice.get("follows"):
            threading.Timer(SECONDS_BEFORE_ADVICE, self._advise, [screen]).start()
        self._saved.follow()

    @traitlets.observe("picked")  # type: ignore[untyped-decorator]
    def _pick(self, change: Mapping[str, Any]) -> None:
        if change["new"] != self._session.selected:
            self.select(change["new"])

    def _show_search(self) -> None:
        with self._turn:
            opened = self._session.take_opened()
            state = self._session.search.state
            self._search = state.to_json()
            if opened or (not state.goes_on and self._session.tab == "search"):
                self._settle()  # what was found may have been loaded already, or be of an old model

    def _show_samples(self) -> None:
        with self._turn:
            if self._session.tab == "samples" and not self._session.samples_search.state.goes_on:
                self._settle()

    def _in_html(self) -> str:
        if self.plan is None:
            return self._still()
        with self._turn:  # an edit would come between what is shown and what is answered
            if self._advice.get("layout") != self._session.count:
                self._advice = advice_of(self._session, ())
            session, state, still = self._session.at_rest(), state_of(self), self._still()
        module = saved_modules(self._entry)
        return saved_view(module, self._css, state, saved_answers(session), still)

    def _still(self) -> str:
        if self.plan is None:
            return f"<p>{escape(str(ConfigError(self.problems)))}</p>"
        return str(self.plan._repr_html_())
