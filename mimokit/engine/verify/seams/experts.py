"""Records what a mixture of experts computes inside: routing, and tokens where they visit experts.

A rank has tokens of other ranks at its experts. Which these are is told by sending their places the
way that the tokens take.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from mimokit.engine.megatron import MoELayer
from mimokit.engine.models.experts import SeededExperts
from mimokit.engine.verify.seams.places import Columns, RowPlaces, share_of_columns
from mimokit.engine.verify.seams.recorder import Recorder
from mimokit.planning.seams import SeamPhase

EXPERT = 1 << 40
"""Where tokens of several experts are rows of one tensor, those of an expert are numbered from a
multiple of this."""

NOBODY = RowPlaces(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass
class MixtureHooks:
    """Records one mixture of experts.

    Attributes:
        now: returns the places of the tokens that the layer has at the moment; None: not known.
        all_visits: places of the tokens at all experts of this rank, in the order of the experts.
        visits: likewise, of each expert.
    """

    recorder: Recorder
    module: str
    operation: str
    layer: MoELayer
    now: Callable[[], RowPlaces | None]
    all_visits: RowPlaces = NOBODY
    visits: list[RowPlaces] = field(default_factory=list)

    def hook(self) -> None:
        """Hook the router, the dispatcher and every expert of this rank."""
        router, dispatcher, experts = (
            self.layer.router, self.layer.token_dispatcher, self.layer.experts,
        )  # fmt: skip
        messenger = copy.copy(dispatcher)
        messenger.shared_experts = None
        router.gating = partial(self._gating, router.gating)
        router.register_forward_hook(self._routed)
        dispatcher.dispatch_preprocess = partial(
            self._leave, messenger, dispatcher.dispatch_preprocess
        )
        experts.register_forward_pre_hook(self._arrive)
        experts.register_forward_hook(self._return)
        dispatcher.combine_postprocess = partial(self._combine, dispatcher.combine_postprocess)
        if isinstance(experts, SeededExperts):
            for place, expert in enumerate(experts.local_experts):
                name = f"experts.local_experts.{experts.first + place}"
                self._hook_expert(name, expert, partial(self._at_expert, place))

    def _gating(self, original: Any, hidden: torch.Tensor) -> torch.Tensor:
        own = hidden.view_as(hidden)
        logits: torch.Tensor = original(own)
        self._gradient("router.logits", own, self.now())
        self._output("router.logits", logits, self.now())
        self._gradient("router.routing", logits, self.now())
        return logits

    def _routed(self, router: Any, given: Any, output: Any) -> None:
        self._output("router.routing", output[0], self.now())

    def _leave(self, messenger: Any, original: Any, hidden: Any, chosen: Any, shares: Any) -> Any:
        """Send the places of the tokens first. Collective."""
        tokens, places = hidden.numel() // hidden.shape[-1], self.now()
        sent = torch.full((tokens, 2), -1.0, dtype=torch.float64, device=hidden.device)
        if places is not None and len(places.rows) == tokens:
            sent = torch.from_numpy(np.stack((places.samples, places.rows), 1)).to(sent)
        with torch.no_grad():
            sent = sent.reshape(*hidden.shape[:-1], 2)
            sent, ones = messenger.dispatch_preprocess(sent, chosen, shares.detach())
            sent, ones = messenger.token_dispatch(sent, ones)
            sent, counts, _ = messenger.dispatch_postprocess(sent, ones)
        numbers = sent.cpu().numpy().astype(np.int64)
        ends = np.cumsum(torch.as_tensor(counts).cpu().numpy())[:-1]
        self.visits = [RowPlaces(*expert.T) for expert in np.split(numbers, ends)]
        first = getattr(self.layer.experts, "first", 0)
        apart = [
            np.where(visit.rows < 0, -1, visit.rows + EXPERT * (first + place))
            for place, visit in enumerate(self.visits)
        ]
        self.all_visits = RowPlaces(numbers[:, 0], np.concatenate(apart))
        self.recorder.note_line(self.module, f"{self.operation}.dispatch")
        own = hidden.view_as(hidden)
        self._gradient("dispatch", own, places)
        return original(own, chosen, shares)

    def _arrive(self, experts: Any, given: Any) -> None:
        self._output("dispatch", given[0], self.all_visits)

    def _return(self, experts: Any, given: Any, output: Any) -> None:
        self._gradient("combine", output[0], self.all_visits)

    def _combine(self, original: Any, *given: Any) -> torch.Tensor:
        output: torch.Tensor = original(*given)
        self._output("combine", output, self.now())
        return output

    def _at_expert(self, place: int) -> RowPlaces | None:
        return self.visits[place] if place < len(self.visits) else None

    def _hook_expert(self, name: str, expert: Any, now: Callable[[], RowPlaces | None]) -> None:
        """Record both matrices of an expert, and what is between them.

        Ranks that share the matrices have summands of what the second gives, and of the gradient
        that the first gives.
        """
        first, second = expert.linear_fc1, expert.linear_fc2
        above, below = share_of_columns(first.weight, 0), share_of_columns(second.weight, 1)
        share = "" if below is None else f"part {second.tp_group.rank()}"

        def before_first(module: Any, given: Any) -> Any:
            own = given[0].view_as(given[0])
            self._gradient(f"{name}.linear_fc1", own, now(), share=share)
            return (own, *given[1:])

        def after_first(module: Any, given: Any, output: Any) -> None:
            self._output(f"{name}.linear_fc1", output[0], now(), above)
            self._gradient(f"{name}.activation", output[0], now(), above)

        def before_second(module: Any, given: Any) -> Any:
            own = given[0].view_as(given[0])
            self._output(f"{name}.activation", own, now(), below)
            self._gradient(f"{name}.linear_fc2", own, now(), below)
            return (own, *given[1:])

        def after_second(module: Any, given: Any, output: Any) -> None:
            self._output(f"{name}.linear_fc2", output[0], now(), share=share)

        first.register_forward_pre_hook(before_first)
        first.register_forward_hook(after_first)
        second.register_forward_pre_hook(before_second)
        second.register_forward_hook(after_second)

    def _gradient(
        self, name: str, tensor: torch.Tensor, places: RowPlaces | None,
        columns: Columns = None, share: str = "",
    ) -> None:  # fmt: skip
        """Record the gradient that arrives at a tensor.

        The hook does not hold the layer, whose dispatcher keeps a tensor of the same graph.
        """
        if torch.is_grad_enabled() and tensor.requires_grad:
            of = self.recorder, self.module, f"{self.operation}.{name}", SeamPhase.BACKWARD
            tensor.register_hook(partial(_record, *of, places, columns, share))  # type: ignore[no-untyped-call]

    def _output(
        self, name: str, tensor: torch.Tensor, places: RowPlaces | None,
        columns: Columns = None, share: str = "",
    ) -> None:  # fmt: skip
        operation, phase = f"{self.operation}.{name}", SeamPhase.FORWARD
        self.recorder.note_line(self.module, operation)
        _record(self.recorder, self.module, operation, phase, places, columns, share, tensor)


def _record(
    recorder: Recorder, module: str, operation: str, phase: SeamPhase, places: RowPlaces | None,
    columns: Columns, share: str, tensor: torch.Tensor,
) -> None:  # fmt: skip
    width = tensor.shape[-1]
    if places is None or not len(places.rows) or tensor.numel() != width * len(places.rows):
        return
    recorder.tensor(module, operation, phase, tensor, places, columns, share)
