"""What of a module decides which parallel sizes it can have."""

from __future__ import annotations

from dataclasses import dataclass

from mimokit.architecture.modules import LanguageModel
from mimokit.architecture.parameters_on_rank import Module, net_of
from mimokit.layout_search.task import SearchTask
from mimokit.prediction import Workload


@dataclass(frozen=True)
class ModuleFacts:
    """The numbers of a module that parallel sizes have to divide.

    Attributes:
        name: of the module.
        is_language: it is the language model.
        heads: query heads.
        kv_heads: key and value heads.
        widths: inner widths of feed-forward layers that tensor parallelism cuts.
        layers: transformer layers.
        extra: layers that predict tokens further on.
        experts: routed experts per layer; 0 for none.
        seq: tokens of one sequence.
        global_batch_size: samples per step.
        gpus: how many there are.
        fused_attention: the attention core keeps no scores.
    """

    name: str
    is_language: bool
    heads: int
    kv_heads: int
    widths: tuple[int, ...]
    layers: int
    extra: int
    experts: int
    seq: int
    global_batch_size: int
    gpus: int
    fused_attention: bool

    @property
    def sequence_pieces(self) -> int:
        """Pieces per context-parallel rank: a causal sequence is dealt out in two."""
        return 2 if self.is_language else 1


def facts_of(task: SearchTask, module: Module) -> ModuleFacts:
    """Return the facts of one module."""
    net, workload = net_of(module), task.workload
    widths = [net.ffn] if net.dense_layers else []
    if net.moe is not None and net.moe.shared_ffn:
        widths.append(net.moe.shared_ffn)
    language = isinstance(module, LanguageModel)
    return ModuleFacts(
        name=module.name,
        is_language=language,
        heads=net.heads,
        kv_heads=net.heads if net.mla is not None else net.kv_heads,
        widths=tuple(widths),
        layers=net.layers,
        extra=module.next_token_layers if isinstance(module, LanguageModel) else 0,
        experts=0 if net.moe is None else net.moe.experts,
        seq=_sequence(module, workload),
        global_batch_size=workload.global_batch_size,
        gpus=task.gpus,
        fused_attention=task.software.fused_attention,
    )


def _sequence(module: Module, workload: Workload) -> int:
    if isinstance(module, LanguageModel):
        return workload.seq_length
    return workload.input_of(module).length
