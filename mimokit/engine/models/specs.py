"""The specs of modules, and the provider of those that a config describes."""

from dataclasses import replace
from typing import Any

from mimokit.architecture.from_config import cuts_of_config
from mimokit.architecture.tokens import row_features
from mimokit.config import ModelSection, ModuleArchitecture, ProjectorArchitecture
from mimokit.config.user_code import NO_CODE, UserCode, is_spec
from mimokit.engine.megatron import ModalitySubmodules, ModuleSpec
from mimokit.engine.models.adapter import ROWS
from mimokit.engine.models.audio import AUDIO
from mimokit.engine.models.encoder import EncoderKind
from mimokit.engine.models.language import language_model_spec, text_decoder_spec
from mimokit.engine.models.own_modules import OwnEncoder, OwnLanguageModel
from mimokit.engine.models.provider import ModelProvider
from mimokit.engine.models.text import TEXT
from mimokit.engine.models.transformer import ModuleBuild, module_builds
from mimokit.engine.models.vision import ANY_SIZE_VISION, VISION
from mimokit.planning.types import LayoutPlan


def encoder_kind(architecture: ModuleArchitecture) -> EncoderKind:
    """Return which kind of encoder an architecture describes."""
    if architecture.modality == "vision":
        return ANY_SIZE_VISION if architecture.any_image_size else VISION
    return {"audio": AUDIO, "text": TEXT, "rows": ROWS}[architecture.modality]


def multimodal_provider(
    config: ModelSection, plan: LayoutPlan, seed: int, code: UserCode = NO_CODE
) -> ModelProvider:
    """Return the provider of the modules that a config describes, in the layout of a plan."""
    builds = module_builds(config, plan, seed, code)
    return ModelProvider(
        language_model_spec=language_spec(builds[plan.llm_module_name]),
        modality_submodules_spec={
            name: encoder_spec(builds[name]) for name in config.encoder_module_names
        },
        special_token_ids={
            name: token
            for name, token in config.special_token_ids.items()
            if config.llm_module_name in config.module_topology.get(name, ())
        },
        mimo_parallelism_config=config,
        seed=seed,
        decoder_specs={name: decoder_spec(builds[name]) for name in config.decoder_module_names},
        cuts=cuts_of_config(config),
        own_modules=[name for name, build in builds.items() if build.builder is not None],
    )


def language_spec(build: ModuleBuild) -> ModuleSpec:
    """Return the spec of the language model, of mimokit or of the user."""
    if build.builder is None:
        return language_model_spec(build)
    params = {"config": build.config, "build": build, "pg_collection": None}
    return ModuleSpec(module=OwnLanguageModel, params=params)


def decoder_spec(build: ModuleBuild) -> ModuleSpec:
    """Return the spec of a module behind the language model."""
    of_text = build.architecture.modality == "text"
    return text_decoder_spec(build) if of_text else image_decoder_spec(build)


def image_decoder_spec(build: ModuleBuild) -> ModuleSpec:
    """Return the spec of a decoder of images or sound.

    It takes what the language model has made of the placeholders of an image. All of these rows
    attend to each other, as in an adapter, and a matrix makes each of them the pixels of its patch,
    or the log-mel frames of a token of sound.
    """
    network, language = build.architecture, build.joined
    head = ProjectorArchitecture(hidden_sizes=[])
    layers = network.over_rows.model_copy(update={"projector": head})
    made = language.model_copy(update={"hidden_size": row_features(network)})
    spec = ROWS.spec(replace(build, architecture=layers, joined=made))
    spec.submodules["encoders"][ROWS.name].params["inputs"] = language.hidden_size
    return spec


def encoder_spec(build: ModuleBuild) -> ModuleSpec:
    """Return the spec of an encoder, of mimokit or of the user, and its projector."""
    if is_whole_modality(build.builder):
        return build.builder
    kind = encoder_kind(build.architecture)
    spec = kind.spec(build)
    if build.builder is not None:
        params = {"build": build, "kind": kind, "pg_collection": None}
        spec.submodules["encoders"] = {kind.name: ModuleSpec(module=OwnEncoder, params=params)}
    return spec


def is_whole_modality(builder: Any) -> bool:
    """Whether it is a spec of encoders and their projection, as Megatron's `MimoModel` takes it."""
    kind = getattr(builder, "module", None)
    return is_spec(builder) and isinstance(kind, type) and issubclass(kind, ModalitySubmodules)
