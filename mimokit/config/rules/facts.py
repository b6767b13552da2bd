"""What rules of layouts read next to sizes: facts as plain numbers.

A fact that a reader does not know is 0, which everything divides. Replicas and samples that are not
known yet are 0, too, and the rules that read them are silent.
"""

from dataclasses import dataclass
from typing import Any

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.sizes import ParallelSizes


@dataclass(frozen=True)
class ModuleFacts:
    """The numbers that a module's sizes have to divide; 0 where a reader does not know one.

    Attributes:
        heads: query heads.
        ffn: inner width of the dense feed-forward layers, 0 without any.
        shared_ffn: inner width of the shared expert, 0 without one.
        vocab: rows of an embedding that is not padded.
        extra: layers that predict tokens further on.
        ends: embedding and loss count as layers where layers are dealt to chunks. None: where that
            alone comes out even.
        experts: routed experts per layer; 0 for none.
        expert_ffn: inner width of one of them.
        value_biases: biases of values, where keys have none; 0 where both have them, or neither.
        projector_widths: outputs of the matrices of projectors that ranks share.
        inner_layers: layers of an encoder whose rows the first layers of a language model add.
        plans_experts: sizes may have expert parallelism before there is a network.
        seq: tokens of one sequence.
        global_batch_size: samples per optimizer step.
        gpus: how many there are, for a search; 0 for any number.
        fused_attention: the attention core keeps no scores.
        sized_by: the module whose sizes it has, where it lies in that one's first stage.
    """

    name: str
    is_language: bool
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    shared_ffn: int = 0
    vocab: int = 0
    layers: int = 0
    extra: int = 0
    ends: bool | None = None
    experts: int = 0
    expert_ffn: int = 0
    expert_biases: bool = False
    value_biases: int = 0
    projector_widths: tuple[int, ...] = ()
    inner_layers: int = 0
    plans_experts: bool = False
    seq: int = 0
    global_batch_size: int = 0
    gpus: int = 0
    fused_attention: bool = False
    sized_by: str = ""

    @property
    def sized_like(self) -> str:
        """The module whose sizes it has."""
        return self.sized_by or self.name

    @property
    def layers_with_ends(self) -> int:
        """Layers with embedding and loss counted as layers."""
        return self.layers + 2 + self.extra

    @property
    def most_chunks(self) -> int:
        """Of layers with ends: each chunk has a layer, or is the last and full of its ends."""
        return min(self.layers, self.layers_with_ends // (1 + self.extra))


def facts_of_network(network: ModuleArchitecture, **known: Any) -> ModuleFacts:
    """Return what follows from a network, and what else is known of its module."""
    only_values = network.qkv_bias and not network.key_bias
    facts: dict[str, Any] = {
        "heads": network.heads,
        "kv_heads": network.key_heads,
        "ffn": network.ffn if network.dense_layers else 0,
        "shared_ffn": network.shared_ffn,
        "layers": network.layers,
        "extra": network.next_token_layers,
        "experts": network.experts,
        "expert_ffn": network.expert_ffn if network.experts else 0,
        "expert_biases": network.experts > 0 and network.ffn_bias,
        "value_biases": network.key_heads * network.head_dim if only_values else 0,
    }
    return ModuleFacts(**facts | known)


@dataclass(frozen=True)
class PairFacts:
    """What rules of two modules read in addition to the sizes of both.

    Attributes:
        in_first_stage: in homogeneous mode an encoder's sizes are those with which it lies in the
            first stage, 1 stage and 1 chunk. False: they are written as the language model's.
        global_batch_size: samples per optimizer step, 0 if unknown.
    """

    mode: str
    name: str
    other: str
    in_first_stage: bool = True
    global_batch_size: int = 0


def unknown_sizes(sizes: ParallelSizes) -> set[str]:
    """Return the fields of one module that are not known yet."""
    return {field for field in ("data", "micro_batch") if getattr(sizes, field) == 0}
