"""What generation does not compute, and a config.json may ask for."""

from collections.abc import Iterator, Mapping
from typing import Any

from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.functions import rotary_scaling, rotary_section, section_of
from mimokit.units import listed

SCALINGS = ("linear", "llama3", "yarn")
"""Kinds of rotary scaling that can run."""


def obstacles(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what cannot run: field, what is wrong with it, and what can."""
    fields, kind = section_of(config)
    rotary = rotary_section(fields)
    scaling = None if kind == "gpt2" else rotary_scaling(rotary)
    if scaling is not None and scaling.rope_type not in SCALINGS:
        what = f"its rotary scaling is {scaling.rope_type!r}; {listed(SCALINGS)} can run"
        yield "rotary_scaling", what
    unknown = tuple(_of_gpt2(fields) if kind == "gpt2" else _of_positions(fields, rotary))
    if unknown:
        yield "fields", f"it sets {listed(unknown)}, which cannot run"


def _of_positions(fields: Fields, rotary: Fields) -> Iterator[str]:
    share = fields.number_or("partial_rotary_factor", 1.0)
    if rotary.number_or("partial_rotary_factor", share) != 1.0:
        yield "partial_rotary_factor"
    if "attention_factor" in rotary:
        yield "attention_factor"
    if not rotary.flag("truncate", default=True):
        yield "truncate: false"


def _of_gpt2(fields: Fields) -> Iterator[str]:
    if not fields.flag("scale_attn_weights", default=True):
        yield "scale_attn_weights: false"
    if fields.flag("scale_attn_by_inverse_layer_idx"):
        yield "scale_attn_by_inverse_layer_idx: true"
