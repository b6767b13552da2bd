"""Has routers take the experts that one process has chosen, where their own nearly tie with these.

Megatron's routers ask an object for their top k: its `RouterReplay`, one for each layer of a
process, which replays whatever it was given. Here that object knows samples and positions, of which
a rank of another layout has others, and leaves a choice alone that no rounding explains.
"""

import math
from collections.abc import Callable

import torch

from mimokit.engine.models.experts import routers_of
from mimokit.engine.models.routing import TokenPlaces
from mimokit.planning.expert_choices import (
    CHOSEN,
    KEPT,
    Array,
    BySample,
    ExpertChoices,
    Rerouted,
    Router,
    together,
)

TopK = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class Routing:
    """The choices of the routers of this rank in a step, next to those of one process."""

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, expected: ExpertChoices | None) -> None:
        """Begin a step that one process has computed; None: that no other has."""
        self.expected = expected or ExpertChoices()
        self._rerouted: list[Rerouted] = []

    @property
    def near(self) -> float:
        """How far apart scores are that give way to those of one process."""
        return self.expected.near

    def note(self, router: Router, places: TokenPlaces, codes: torch.Tensor) -> None:
        """Take note of a choice, [tokens, experts]."""

    def note_scores(self, router: Router, places: TokenPlaces, scores: torch.Tensor) -> None:
        """Take note of the scores of a choice, [tokens, experts]."""

    def count(self, rerouted: Rerouted) -> None:
        """Count choices that were compared."""
        self._rerouted.append(rerouted)

    @property
    def rerouted(self) -> Rerouted:
        """All that was counted in this step."""
        return together(self._rerouted)


class WholeRouting(Routing):
    """The same in one process, which notes its choices. It takes all of those it is given."""

    near = math.inf

    def begin(self, expected: ExpertChoices | None) -> None:
        """Begin a step, with the choices of a run before this one or its own."""
        super().begin(expected)
        self._experts: dict[Router, dict[int, Array]] = {}
        self._scores: dict[Router, dict[int, Array]] = {}

    @property
    def made(self) -> ExpertChoices:
        """The choices of all tokens of the step."""
        return ExpertChoices(self._experts, self._scores)

    def note(self, router: Router, places: TokenPlaces, codes: torch.Tensor) -> None:
        """Keep a choice."""
        own = {sample: codes[tokens].numpy() for sample, tokens in places.by_sample()}
        self._experts.setdefault(router, {}).update(own)

    def note_scores(self, router: Router, places: TokenPlaces, scores: torch.Tensor) -> None:
        """Keep scores, and measure how far they are from those of the run before."""
        own = {sample: scores[tokens].numpy() for sample, tokens in places.by_sample()}
        self._scores.setdefault(router, {}).update(own)
        theirs = self.expected.scores.get(router, {})
        apart = [abs(own[sample] - theirs[sample]).max() for sample in own if sample in theirs]
        self.count(Rerouted(scores=float(max(apart, default=0.0))))


class LayerRouting:
    """What a router asks, in place of Megatron's `RouterReplay`.

    Attributes:
        places: of the tokens of a pass; None: they are not known, and nothing is compared.
        counts: whether this pass is one to count.
        chosen: the experts of the pass, [tokens, experts] bool.
    """

    places: TokenPlaces | None = None
    counts: bool = False
    chosen: torch.Tensor

    def __init__(self, of_rank: Routing, router: Router) -> None:
        self._of_rank, self._router = of_rank, router

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: TopK,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of the experts of every token and their numbers, [tokens, top k]."""
        values, experts = default_compute_topk(scores, topk, num_groups, group_topk)
        compared, border = scores.detach(), values.detach().min(1, keepdim=True).values
        own = torch.zeros_like(compared, dtype=torch.bool).scatter(1, experts, True)
        theirs = self._theirs(own)
        known = (theirs > 0).any(1, keepdim=True)
        other = (own ^ (theirs & CHOSEN > 0)) & known
        taken = self._taken(other, (compared - border).abs(), int(known.sum()))
        self.chosen = own ^ (other & taken)
        if taken.any():
            experts = torch.where(taken, self.chosen.int().topk(topk, dim=1).indices, experts)
            values = scores.gather(1, experts)
        if self.places is not None:
            self._of_rank.note_scores(self._router, self.places, compared.float().cpu())
            self._of_rank.note(self._router, self.places, (self.chosen * CHOSEN).byte().cpu())
        return values, experts

    def room(self, scores: torch.Tensor, own: torch.Tensor, border: torch.Tensor) -> torch.Tensor:
        """Return which of the chosen experts have room for a token, [tokens, experts] bool.

        Args:
            scores: [tokens, experts].
            own: whether they have by these scores.
            border: the lowest score of the tokens of the same sample that an expert has room for.
        """
        own, theirs = own & self.chosen, self._theirs(own)
        other = (own ^ (theirs & KEPT > 0)) & self.chosen & (theirs & CHOSEN > 0)
        kept = own ^ (other & self._taken(other, (scores - border).abs()))
        if self.places is not None:
            codes = self.chosen * CHOSEN | kept * KEPT
            self._of_rank.note(self._router, self.places, codes.byte().cpu())
        return kept

    def _theirs(self, own: torch.Tensor) -> torch.Tensor:
        """Return what one process has chosen for the same tokens, 0 where that is not known."""
        known: BySample = self._of_rank.expected.experts.get(self._router, {})
        theirs, places = torch.zeros(own.shape, dtype=torch.uint8), self.places
        if places is None:
            return theirs.to(own.device)
        for sample, tokens in places.by_sample():
            if sample in known:
                whole, positions = torch.from_numpy(known[sample]), places.positions[tokens]
                there = positions < len(whole)  # a row may keep more padding than there is
                theirs[tokens[there]] = whole[positions[there]]
        return theirs.to(own.device)

    def _taken(self, other: torch.Tensor, apart: torch.Tensor, choices: int = 0) -> torch.Tensor:
        """Return which tokens give way to one process, [tokens, 1] bool, and count them.

        Args:
            other: the experts of which they differ, [tokens, experts].
            apart: how far the score of each is from the border of a choice.
        """
        differ, worst = other.any(1), (apart * other).amax(1)
        near = worst <= self._of_rank.near
        if self.counts:
            taken, wrong = int((differ & near).sum()), int((differ & ~near).sum())
            farthest = float(worst.max()) if len(worst) else 0.0
            self._of_rank.count(Rerouted(choices, taken, wrong, farthest))
        return (differ & near)[:, None]


def replay_routing(name: str, module: torch.nn.Module, routing: Routing) -> None:
    """Let the routers of a module's part on this rank ask what one process has chosen."""
    for layer, router in routers_of(module).items():
        router.router_replay = LayerRouting(routing, (name, layer))
