"""Networks of tests: like all others they are made of the fields of a config."""

from collections.abc import Mapping
from typing import Any

from mimokit.architecture import LanguageModel, Transformer
from mimokit.architecture.from_config import language_of_config, net_of_config
from mimokit.config import ModuleArchitecture
from mimokit.config.meaning import MEANINGS

_SIZES = "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn"
_FIELDS = {each.name: each.field for each in MEANINGS}
LLAMA: dict[str, Any] = {"gated": True, "norm": "RMSNorm", "ffn_bias": False}
GPT: dict[str, Any] = {"gated": False, "norm": "LayerNorm", "ffn_bias": False}


def network(*sizes: int, **meant: Any) -> ModuleArchitecture:
    """Return a network by what its fields mean; in layers as those of Llama, if not told.

    Args:
        sizes: layers, width, heads, heads with a key, width of a head, of the feed-forward layer.
        meant: fields of a config, by their names or by those of descriptions.
    """
    known = {"vocab": 0, "seq_length": 1, **LLAMA, **dict(zip(_SIZES, sizes, strict=False))}
    return ModuleArchitecture(**_fields(known | meant))


def changed(network: ModuleArchitecture, **meant: Any) -> ModuleArchitecture:
    """Return a network with some other fields; see `network`."""
    return network.model_copy(update=_fields(meant))


def _fields(meant: Mapping[str, Any]) -> dict[str, Any]:
    return {_FIELDS.get(name, name): value for name, value in meant.items()}


def stack(*sizes: int, causal: bool = True, **meant: Any) -> Transformer:
    """Return layers; see `network`."""
    return net_of_config(network(*sizes, **meant), causal)


def language(
    *sizes: int, name: str = "language", positions: int = 0, **meant: Any
) -> LanguageModel:
    """Return a language model with so many learned positions, or rotary ones; see `network`."""
    if positions:
        meant |= {"position_embedding_type": "learned_absolute", "seq_length": positions}
    return language_of_config(name, network(*sizes, **meant))
