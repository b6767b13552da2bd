"""A language model that the user builds: a `GPTModel` of Megatron or of a class derived from it.

What it must obey is in `docs/own_modules.md`.
"""

from __future__ import annotations

from typing import Any

from mimokit.engine.megatron import GPTModel, ProcessGroupCollection, TransformerConfig
from mimokit.engine.models.build import ModuleBuild
from mimokit.engine.models.own_encoder import built


class OwnLanguageModel:
    """Builds the user's language model where Megatron builds a module of a spec."""

    def __new__(
        cls, config: TransformerConfig, build: ModuleBuild, pg_collection: ProcessGroupCollection
    ) -> Any:
        """Return what the user built.

        Args:
            config: for Megatron's `MimoModel`, which reads it in the spec.
            build: what it is built from.

        Raises:
            ValueError: it is not a `GPTModel`, or its sizes are not those of the architecture.
        """
        module, network = built(build, pg_collection), build.architecture
        if not isinstance(module, GPTModel):
            raise ValueError(
                f"Module {build.name!r}: its builder returned a {type(module).__name__}; the "
                "language model must be a GPTModel of Megatron, or of a class derived from it."
            )
        sizes = module.config.hidden_size, module.vocab_size
        wanted = network.hidden_size, network.vocab_size
        if sizes != wanted:
            raise ValueError(
                f"Module {build.name!r}: its builder returned a {type(module).__name__} with "
                f"hidden_size {sizes[0]} and vocab_size {sizes[1]}; in the config they are "
                f"{wanted[0]} and {wanted[1]}."
            )
        return module
