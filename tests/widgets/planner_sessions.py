"""A planner's session driven as the browser drives it."""

from typing import Any

from mimokit_widgets.planner.draft import Draft, content_of
from mimokit_widgets.planner.screen import screen_of
from mimokit_widgets.planner.session import Session

LANGUAGE = "model.module_parallelisms.language_module."
IMAGES = "model.module_parallelisms.images."


class Driver:
    """Sends what a browser would send, and reads what it would be shown."""

    def __init__(self, source: Any = "preset:llava_7b_colocated") -> None:
        self.session = Session(Draft(content_of(source)))
        self._serial = 0

    def send(self, kind: str, **content: Any) -> dict[str, Any] | None:
        self._serial += 1
        return self.session.handle({"type": kind, "serial": f"view-{self._serial}", **content})

    def type(self, path: str, text: str) -> None:
        self.send("edit", path=path.split("."), text=text)

    def click_fix(self, label: str) -> None:
        labels = [error.label for error in self.session.field_errors]
        index = labels.index(label)
        self.send("fix", fixes=list(self.session.field_errors[index].fixes))

    @property
    def screen(self) -> dict[str, Any]:
        return screen_of(self.session)

    @property
    def sentences(self) -> list[str]:
        return [error.sentence for error in self.session.field_errors]

    @property
    def labels(self) -> list[str]:
        return [error.label for error in self.session.field_errors]

    @property
    def plan(self) -> Any:
        assert self.session.valid is not None
        return self.session.valid.plan
