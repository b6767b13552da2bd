"""Tokens visit the wrong experts, or are scored wrongly."""

from functools import partial
from typing import Any

from mimokit.config import ExperimentConfig
from tests import seams
from tests.experiment.culprit.faults.fault import BACKWARD, FORWARD, LANGUAGE, Fault
from tests.layouts_experts import experts_config
from tests.planted import replacing


def replicas_of_experts() -> ExperimentConfig:
    """Return two replicas, each of which has half of the experts; tokens visit two of four."""
    return experts_config((1, 1, 2), (1, 1, 2))


@replacing
def other_choice(
    original: Any, logits: Any, topk: int, *args: Any, router_replay: Any, **options: Any
) -> Any:
    """Prefer one of the experts a little: the scores of those that are chosen stay right."""
    import torch

    class Choice:
        def get_replay_topk(self, scores: Any, topk: int, *groups: Any) -> Any:
            def preferred(scores: Any, topk: int, *_: Any, **__: Any) -> Any:
                raised = scores + 0.5 * torch.eye(scores.shape[1])[0].to(scores)
                experts = raised.topk(topk, dim=1).indices
                return scores.gather(1, experts), experts

            if router_replay is None:
                return preferred(scores, topk)
            return router_replay.get_replay_topk(scores, topk, *groups[:2], preferred)

    return original(logits, topk, *args, router_replay=Choice(), **options)


@replacing
def other_scores(factor: float, original: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Give experts other weights."""
    scores, chosen = original(self, *args, **options)
    return factor * scores, chosen


@replacing
def other_gradient(factor: float, original: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Give the router another gradient."""
    scores, chosen = original(self, *args, **options)
    scores.register_hook(lambda gradient: factor * gradient)
    return scores, chosen


FAULTS = (
    Fault("tokens prefer an expert", replicas_of_experts, seams.TOP_K, other_choice,
          LANGUAGE, "layers.0.mlp.router.routing", FORWARD),
    Fault("experts weigh too much", replicas_of_experts, seams.ROUTING, partial(other_scores, 1.5),
          LANGUAGE, "layers.0.mlp.router.routing", FORWARD, "1.5 times"),
    Fault("a router learns the opposite", replicas_of_experts, seams.ROUTING,
          partial(other_gradient, -1.0), LANGUAGE, "mlp.router.routing", BACKWARD),
)  # fmt: skip
