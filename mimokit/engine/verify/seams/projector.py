"""Records what the projector of an encoder computes inside.

How many of its rows are of which sample is told behind it, so that tensors are kept until then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from mimokit.engine.megatron import MultimodalProjector
from mimokit.engine.verify.seams.places import Columns, RowPlaces, places_of_rows, share_of_columns
from mimokit.engine.verify.seams.recorder import Recorder
from mimokit.planning.seams import PROJECTOR, SeamPhase


class _Kept(NamedTuple):
    operation: str
    phase: SeamPhase
    tensor: torch.Tensor
    columns: Columns = None


@dataclass
class ProjectorHooks:
    """Records the projectors of an encoder.

    Attributes:
        share: of the gradients inside of it, where ranks have summands of them; see `Sketches`.
    """

    recorder: Recorder
    module: str
    share: str = ""
    kept: list[_Kept] = field(default_factory=list)

    def hook(self, encoder: torch.nn.Module) -> None:
        """Hook both matrices of every projector of mimokit's but those inside of another.

        These are of inner layers, and for further modules that an encoder feeds.
        """
        parts = list(encoder.modules())
        inside = {o for p in parts for name in ("inner", "others") for o in getattr(p, name, ())}
        for part in (part for part in parts if part not in inside):
            first = getattr(getattr(part, "encoder", None), "linear_fc1", None)
            if isinstance(part, MultimodalProjector) and first is not None:
                self._hook(first, part.encoder.linear_fc2)

    def _hook(self, first: Any, second: Any) -> None:
        above, below = share_of_columns(first.weight, 0), share_of_columns(second.weight, 1)

        def before_first(module: Any, given: Any) -> Any:
            own = given[0].view_as(given[0])
            self._keep("linear_fc1", SeamPhase.BACKWARD, own)
            return (own, *given[1:])

        def after_first(module: Any, given: Any, output: Any) -> None:
            self._keep("linear_fc1", SeamPhase.FORWARD, output[0], above)
            self._keep("activation", SeamPhase.BACKWARD, output[0], above)

        def before_second(module: Any, given: Any) -> Any:
            own = given[0].view_as(given[0])
            self._keep("activation", SeamPhase.FORWARD, own, below)
            self._keep("linear_fc2", SeamPhase.BACKWARD, own, below)
            return (own, *given[1:])

        def after_second(module: Any, given: Any, output: Any) -> None:
            self._keep("linear_fc2", SeamPhase.FORWARD, output[0])

        first.register_forward_pre_hook(before_first)
        first.register_forward_hook(after_first)
        second.register_forward_pre_hook(before_second)
        second.register_forward_hook(after_second)

    def _keep(
        self, name: str, phase: SeamPhase, tensor: torch.Tensor, columns: Columns = None
    ) -> None:
        operation = f"{PROJECTOR}.{name}"
        if phase == SeamPhase.FORWARD:
            self.recorder.note_line(self.module, operation)
        self.kept.append(_Kept(operation, phase, tensor, columns))

    def record(self, samples: Sequence[int], counts: Sequence[int]) -> None:
        """Record what was kept, of so many rows of every sample one after another."""
        kept, self.kept = self.kept, []
        if len(counts) != len(samples):
            return
        places = places_of_rows(samples, counts)
        for piece in kept:
            if len(piece.tensor) != len(places.rows):
                continue
            operation, phase, tensor, columns = piece
            if phase == SeamPhase.FORWARD:
                self._record(operation, phase, places, columns, "", tensor)
            elif torch.is_grad_enabled() and tensor.requires_grad:
                # A hook that held its own tensor would keep it, and all that led to it, for good.
                hook = partial(self._record, operation, phase, places, columns, self.share)
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def _record(
        self, operation: str, phase: SeamPhase, places: RowPlaces, columns: Columns, share: str,
        tensor: torch.Tensor,
    ) -> None:  # fmt: skip
        self.recorder.tensor(self.module, operation, phase, tensor, places, columns, share)
