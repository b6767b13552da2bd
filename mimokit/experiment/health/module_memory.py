"""The memory that modules held in a run, next to what is predicted for it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mimokit.config import ConfigError, ExperimentConfig
from mimokit.planning import plan_layout
from mimokit.prediction import predict
from mimokit.prediction.step_time.software import MEGATRON_CORE
from mimokit.samples import HealthSample
from mimokit.units import bytes_text, parts_text

PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("activations", "logits", "buffers"),
}
"""Part that is measured -> the parts of a prediction that it consists of."""
Predicted = Mapping[str, Mapping[str, float]]
"""Module -> part -> bytes."""


@dataclass(frozen=True)
class HeldMemory:
    """What the rank with the most memory of a module held for it.

    Attributes:
        measured: part -> bytes.
        predicted: likewise; empty if the module is not predicted.
    """

    module: str
    rank: int
    measured: Mapping[str, int]
    predicted: Mapping[str, float]

    def __str__(self) -> str:
        """Return a sentence."""
        total = sum(self.measured.values())
        sentence = (
            f"Module '{self.module}' holds most on rank {self.rank}, {bytes_text(total)}: "
            f"{parts_text(self.measured)}"
        )
        if not self.predicted:
            return f"{sentence}."
        predicted = sum(self.predicted.values())
        return f"{sentence}; predicted are {bytes_text(round(predicted))}."


def held_memory(samples: Iterable[HealthSample], predicted: Predicted) -> Iterator[HeldMemory]:
    """Yield what was held for each module; nothing if ranks did not measure it."""
    most: dict[str, HealthSample] = {}
    for sample in samples:
        for module, parts in sample.held.items():
            known = most.get(module)
            if known is None or sum(parts.values()) > sum(known.held[module].values()):
                most[module] = sample
    for module, sample in most.items():
        yield HeldMemory(module, sample.rank, sample.held[module], predicted.get(module, {}))


def predicted_memory(config: ExperimentConfig) -> Predicted:
    """Return the memory that is predicted for each module on its rank with the most.

    Attention keeps its scores where a run has Megatron's own core, which is not fused. Nothing is
    returned for what cannot be predicted, as decoders on shared ranks.
    """
    # Runs add up gradients outside of the products, without Transformer Engine.
    own = replace(MEGATRON_CORE, fused_attention=False, dummy_gradients=False)
    fused = _fused_modules(config)
    try:
        memory = dict(predict(config, software=own).memory)
        if fused:
            without_scores = predict(config, software=replace(own, fused_attention=True)).memory
            memory |= {name: parts for name, parts in without_scores.items() if name in fused}
    except ConfigError:
        return {}
    return {
        module: {
            part: sum(parts.get(name, 0.0) for name in of_part) for part, of_part in PARTS.items()
        }
        for module, parts in memory.items()
    }


def _fused_modules(config: ExperimentConfig) -> frozenset[str]:
    model, plan = config.model, plan_layout(config)
    networks = {name: model.get_architecture(name) for name in plan.executions}
    return frozenset(
        name
        for name, execution in plan.executions.items()
        if not execution.keeps_scores(networks[name], is_causal=networks[name].modality == "text")
    )
