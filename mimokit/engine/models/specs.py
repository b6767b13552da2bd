"""The specs of the modules that a config describes, with the sizes that the plan gives them."""

from __future__ import annotations

from mimokit.architecture.from_config import cuts_of_config
from mimokit.config import MimoParallelismConfig, ModuleArchitecture
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.engine.megatron import ModuleSpec
from mimokit.engine.models.any_size import ANY_SIZE_VISION
from mimokit.engine.models.audio import AUDIO
from mimokit.engine.models.decoder import text_decoder_spec
from mimokit.engine.models.encoder import EncoderKind
from mimokit.engine.models.language import language_model_spec
from mimokit.engine.models.own_encoder import own_encoder_spec
from mimokit.engine.models.own_language import own_language_spec
from mimokit.engine.models.provider import MimoModelProvider
from mimokit.engine.models.rng import module_seed
from mimokit.engine.models.text import TEXT
from mimokit.engine.models.vision import VISION
from mimokit.planning.ranks import ModuleRanks
from mimokit.planning.types import LayoutPlan


def encoder_kind(architecture: ModuleArchitecture) -> EncoderKind:
    """Return which kind of encoder an architecture describes."""
    if architecture.modality in ("audio", "text"):
        return AUDIO if architecture.modality == "audio" else TEXT
    return ANY_SIZE_VISION if architecture.any_image_size else VISION


def encoder_submodule_spec(
    architecture: ModuleArchitecture,
    language: ModuleArchitecture,
    sizes: ModuleRanks,
    initial_seed: int = 0,
) -> ModuleSpec:
    """Return the spec of an encoder and its projector; the provider injects groups and stage.

    Args:
        architecture: of the encoder.
        language: of the language model, in whose width the projector ends.
        sizes: parallel sizes of the encoder.
        initial_seed: see `SeededTransformerLayer`.

    Raises:
        ValueError: if its sizes do not divide each other.
    """
    return encoder_kind(architecture).spec(architecture, language, sizes, initial_seed)


def multimodal_provider(
    config: MimoParallelismConfig, plan: LayoutPlan, seed: int, code: UserCode = NO_CODE
) -> MimoModelProvider:
    """Return the provider of the modules that a config describes, in the layout of a plan.

    Networks come from the config, parallel sizes from the plan, modules of the user from the code.
    """
    language = config.llm_module_name
    network = config.get_architecture(language)
    return MimoModelProvider(
        language_model_spec=_language(config, plan, seed, code),
        modality_submodules_spec={
            name: _encoder(config, plan, seed, code, name) for name in config.encoder_module_names
        },
        special_token_ids=config.special_token_ids,
        mimo_parallelism_config=config,
        seed=seed,
        decoder_specs={
            name: text_decoder_spec(
                config.get_architecture(name), network, plan.modules[name], module_seed(seed, name)
            )
            for name in config.decoder_module_names
        },
        cuts=cuts_of_config(config),
        own_modules=[
            name
            for name, one in config.module_architectures.items()
            if code.builder_of(name, one) is not None
        ],
    )


def _language(
    config: MimoParallelismConfig, plan: LayoutPlan, seed: int, code: UserCode
) -> ModuleSpec:
    """Return the spec of the language model, of mimokit or of the user."""
    name = config.llm_module_name
    network = config.get_architecture(name)
    own = code.builder_of(name, network)
    if own is not None:
        return own_language_spec(name, own, network, plan.modules[name])
    return language_model_spec(network, plan.modules[name], module_seed(seed, name))


def _encoder(
    config: MimoParallelismConfig, plan: LayoutPlan, seed: int, code: UserCode, name: str
) -> ModuleSpec:
    """Return the spec of an encoder, of mimokit or of the user, and its projector."""
    network = config.get_architecture(name)
    language = config.get_architecture(config.llm_module_name)
    initial = module_seed(seed, name)
    spec = encoder_submodule_spec(network, language, plan.modules[name], initial)
    own = code.builder_of(name, network)
    if own is not None:
        kind = encoder_kind(network)
        encoder = own_encoder_spec(name, own, network, kind, initial)
        spec.submodules["encoders"] = {kind.name: encoder}
    return spec
