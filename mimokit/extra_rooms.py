"""Which rooms beside the core there are, and how the core asks one for something by name.

The core plans, runs, proves and draws one layout. It imports no file of these rooms and works where
any of them is deleted, whole; `mimokit/extras/__init__.py` says where they enter it. A room that
uses what is inside other folders has its files there.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mimokit.sentence_error import SentenceError

FOLDER = Path(__file__).with_name("extras")
_ROOMS = {
    "foreign_loops": "extras/foreign_loops",
    "generation": "extras/generation architecture/huggingface/obstacles",
    "shrinking": "extras/shrinking",
    "strategies": "extras/strategies",
    "search": "layout_search cli/advice_commands cli/search_command experiment/plan_of_model "
    "prediction/advice prediction/checkpoint_memory prediction/weights_memory "
    "planning/weights/config_tensors widgets/pareto_view",
    "samples": "prediction/over_samples charts/_sample_mix cli/measure_command "
    "experiment/measuring",
    "formats": "interop/megatron_lm cli/import_command interop/bridge_write interop/command_line "
    "interop/hugging_face interop/launch interop/megatron_lm_model",
    "calibration": "engine/calibration cli/calibrate_command experiment/calibration "
    "experiment/calibration_on_rank experiment/own_runs prediction/calibration prediction/own_runs",
    "resume_check": "experiment/resume_proof engine/verify/resume experiment/resume_on_rank "
    "experiment/resume_report",
    "culprit": "experiment/culprit charts/_seams charts/_tensor_difference engine/verify/seams "
    "widgets/culprit",
    "stepper": "experiment/stepping engine/stepper experiment/snapshot experiment/stepper "
    "planning/stepper/pictures widgets/stepper widgets/view_models/step_arrows "
    "widgets/view_models/step_clock widgets/view_models/step_picture "
    "widgets/view_models/step_samples widgets/view_models/step_words "
    "widgets/view_models/tensor_views",
}
ROOMS: Mapping[str, tuple[str, ...]] = {
    room: tuple(
        f"{'mimokit_' if place.startswith('widgets/') else 'mimokit/'}{place}"
        for place in places.split()
    )
    for room, places in _ROOMS.items()
}
"""Room -> its folders and files, without `.py`; the first one says whether it is there."""
_ROOM_AT = {at.replace("/", "."): room for room, places in ROOMS.items() for at in places}


class MissingRoomError(SentenceError, ImportError):
    """What was asked for is in a room beside the core that is not installed."""

    def __init__(self, what: str, room: str) -> None:
        self.room = room
        super().__init__(
            f"{what} needs {ROOMS[room][0]}, which is not there; install all of mimokit."
        )


def room_of(module: str) -> str | None:
    """Return the room beside the core that a module is in; None: it is in the core."""
    while module and module not in _ROOM_AT:
        module = module.rpartition(".")[0]
    return _ROOM_AT.get(module)


def is_there(room: str) -> bool:
    """Return whether a room beside the core is installed."""
    place = FOLDER.parents[1] / ROOMS[room][0]
    return (place / "__init__.py").is_file() or place.with_suffix(".py").is_file()


def import_extra(module: str, what: str) -> ModuleType:
    """Return a module of a room beside the core.

    Args:
        module: inside of `mimokit`, such as `"extras.strategies.section"`.
        what: was asked for, as it begins the sentence of the error.

    Raises:
        MissingRoomError: the room is not installed.
    """
    name = f"{__package__}.{module}"
    room = room_of(name)
    if room is not None and not is_there(room):
        raise MissingRoomError(what, room)
    return import_module(name)
