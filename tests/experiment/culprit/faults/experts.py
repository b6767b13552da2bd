"""Faults inside mixtures of experts and projectors."""

from functools import partial
from typing import Any

from mimokit.config import ExperimentConfig
from tests import seams
from tests.experiment.culprit.faults.fault import BACKWARD, FORWARD, IMAGES, LANGUAGE, Fault, scaled
from tests.experiment.culprit.faults.layouts import parts
from tests.layouts_experts import experts_config
from tests.planted import replacing


def spread() -> ExperimentConfig:
    """Return four experts on two of four replicas, to which tokens are sent directly."""
    return experts_config((1, 1, 4), (1, 1, 4), dispatcher="alltoall")


@replacing
def _to_others(original: Any, self: Any, tokens: Any, chosen: Any, shares: Any) -> Any:
    """Send each token to the experts of the one before."""
    return original(self, tokens, chosen.roll(1, 0), shares)


@replacing
def _rolled_on_the_way(original: Any, self: Any, tokens: Any, shares: Any) -> Any:
    """Exchange what tokens carry, but not their places, which are whole numbers."""
    tokens = tokens if tokens.shape[-1] == 2 else tokens.roll(1, 0)
    return original(self, tokens, shares)


@replacing
def _of_experts(change: float, original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Scale the output of matrices of experts."""
    output, bias = original(self, *args, **named)
    return (output * change if self.is_expert else output), bias


def _without_shares(original: Any) -> Any:
    """Leave out how much of an expert a token takes."""
    return lambda self, hidden, *args, **named: original(self, hidden)


@replacing
def _scaled_routing(original: Any, self: Any, *args: Any, **named: Any) -> Any:
    shares, chosen = original(self, *args, **named)
    return 1.5 * shares, chosen


@replacing
def _scaled_gradient(original: Any, self: Any, given: Any, *args: Any, **named: Any) -> Any:
    """Scale the gradient of what an expert's second matrix takes."""
    if self.is_expert:
        given = given * 2 - given.detach()
    return original(self, given, *args, **named)


@replacing
def _projector_scaled(name: str, original: Any, self: Any, *args: Any, **named: Any) -> Any:
    """Scale what a matrix of the projector gives, or the activation between them."""

    def change(module: Any, given: Any, output: Any = None) -> Any:
        return (1.5 * given[0], *given[1:]) if output is None else (1.5 * output[0], output[1])

    first, second = self.encoder.linear_fc1, self.encoder.linear_fc2
    handle = {
        "linear_fc1": partial(first.register_forward_hook, prepend=True),
        "activation": partial(second.register_forward_pre_hook, prepend=True),
        "linear_fc2": partial(second.register_forward_hook, prepend=True),
    }[name](change)
    output = original(self, *args, **named)
    handle.remove()
    return output


FAULTS = (
    Fault("logits of a router are scaled", spread,
          seams.ROUTER_LOGITS, partial(scaled, 1.5),
          LANGUAGE, "layers.0.mlp.router.logits", FORWARD, "1.5 times"),
    Fault("shares of experts are scaled", spread,
          seams.ROUTING, _scaled_routing,
          LANGUAGE, "layers.0.mlp.router.routing", FORWARD, "1.5 times"),
    Fault(
        "tokens go to the experts of others", spread, seams.DISPATCH_PREPROCESS,
        _to_others, LANGUAGE, "layers.0.mlp.dispatch", FORWARD, "rows are not complete on any rank",
    ),
    Fault("tokens arrive one place off", spread, seams.TOKEN_DISPATCH,
          _rolled_on_the_way, LANGUAGE, "layers.0.mlp.dispatch", FORWARD),
    Fault("the first matrix of experts is scaled", spread,
          seams.COLUMN_PARALLEL, partial(_of_experts, 1.5),
          LANGUAGE, "experts.local_experts.0.linear_fc1", FORWARD, "1.5 times"),
    Fault("tokens take all of an expert", spread, seams.MLP, _without_shares,
          LANGUAGE, "experts.local_experts.0.activation", FORWARD),
    Fault("the second matrix of experts is scaled", spread,
          seams.ROW_PARALLEL, partial(_of_experts, 1.5),
          LANGUAGE, "experts.local_experts.0.linear_fc2", FORWARD, "1.5 times"),
    Fault("the gradient from the second matrix of experts is doubled", spread,
          seams.ROW_PARALLEL, _scaled_gradient,
          LANGUAGE, "linear_fc2", BACKWARD, "2 times"),
    *(
        Fault(
            f"{name} of a projector is scaled", parts,
            seams.PROJECTOR,
            partial(_projector_scaled, name),
            IMAGES, f"projector.{name}", FORWARD, "1.5 times",
        )
        for name in ("linear_fc1", "activation", "linear_fc2")
    ),
)  # fmt: skip
