"""A language model that the user builds: a `GPTModel` of Megatron or of a class derived from it.

What it must obey is in `docs/own_modules.md`.
"""

from __future__ import annotations

from typing import Any

from mimokit.config import ModuleArchitecture
from mimokit.config.user_code import OwnModule
from mimokit.engine.megatron import GPTModel, ModuleSpec, ProcessGroupCollection, TransformerConfig
from mimokit.engine.models.own_encoder import built
from mimokit.engine.models.transformer import ParallelSizes, transformer_config


class OwnLanguageModel:
    """Builds the user's language model where Megatron builds a module of a spec."""

    def __new__(
        cls,
        config: TransformerConfig,
        name: str,
        own: OwnModule,
        architecture: ModuleArchitecture,
        pg_collection: ProcessGroupCollection,
    ) -> Any:
        """Return what the user built.

        Raises:
            ValueError: it is not a `GPTModel`, or its sizes are not those of the architecture.
        """
        module = built(name, own, architecture, pg_collection)
        if not isinstance(module, GPTModel):
            raise ValueError(
                f"Module {name!r}: its builder returned a {type(module).__name__}; the language "
                "model must be a GPTModel of Megatron, or of a class derived from it."
            )
        found = module.config.hidden_size, module.vocab_size
        wanted = architecture.hidden_size, architecture.vocab_size
        if found != wanted:
            raise ValueError(
                f"Module {name!r}: its builder returned a {type(module).__name__} with hidden_size "
                f"{found[0]} and vocab_size {found[1]}; in the config they are {wanted[0]} and "
                f"{wanted[1]}."
            )
        return module


def own_language_spec(
    name: str, own: OwnModule, architecture: ModuleArchitecture, sizes: ParallelSizes
) -> ModuleSpec:
    """Return the spec of a language model that the user builds; the provider injects groups."""
    params = {
        "config": transformer_config(architecture, sizes),  # Megatron's `MimoModel` reads it here
        "name": name,
        "own": own,
        "architecture": architecture,
        "pg_collection": None,
    }
    return ModuleSpec(module=OwnLanguageModel, params=params)
