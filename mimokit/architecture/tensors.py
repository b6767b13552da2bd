"""The table of tensors: names, shapes, how each is cut, and which pipeline stage holds it.

It is of the networks that mimokit's engine builds and of the weights that it reads.
"""

from collections.abc import Iterable

from mimokit.architecture.encoders import ENCODER_NAMES, Encoder
from mimokit.architecture.modules import EncoderBranch, Module
from mimokit.architecture.tensor_cut import TensorCut
from mimokit.architecture.tensor_rows import ModuleTensor


def module_tensors(module: Module) -> tuple[ModuleTensor, ...]:
    """Return the tensors of a module: a language model, an encoder and projector, or a decoder."""
    prefix = ENCODER_NAMES[type(module.encoder)] if isinstance(module, EncoderBranch) else ""
    return (*module.net.rows(prefix), *module.ends())


def cuts_of(module: Module) -> dict[str, TensorCut]:
    """Return tensor -> how it is cut; a copy goes by the name of what it copies."""
    return {row.copy_of or row.name: row.cut for row in module_tensors(module)}


def by_name(tensors: Iterable[ModuleTensor]) -> dict[str, tuple[ModuleTensor, ...]]:
    """Return tensors by their names; a copy may have the name of what it is a copy of."""
    rows: dict[str, tuple[ModuleTensor, ...]] = {}
    for row in tensors:
        rows[row.name] = (*rows.get(row.name, ()), row)
    return rows


def encoder_tensors(encoder: Encoder, prefix: str) -> tuple[ModuleTensor, ...]:
    """Return the tensors of an encoder, with a prefix in front of their names."""
    return (*encoder.net.rows(prefix), *encoder.in_front(prefix), *encoder.behind(prefix))
