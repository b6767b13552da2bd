"""What generation and checks read of weights, and what they need of them."""

from mimokit.architecture.huggingface.families import family_of
from mimokit.architecture.huggingface.fields import Fields
from mimokit.architecture.huggingface.llava import image_token
from mimokit.architecture.huggingface.module_weights import module_family
from mimokit.architecture.huggingface.qwen_vision_tensors import QWEN_VISION_TYPES
from mimokit.architecture.huggingface.weight_tensors import GROUPED_TYPES
from mimokit.planning.weights.directory import WeightDirectory, refused
from mimokit.planning.weights.plan import WeightPlanner
from mimokit.units import counted, shown

LANGUAGE_TYPES = (*GROUPED_TYPES, "gpt2")
"""The values of `model_type` that make logits."""


def check_language(weights: WeightDirectory) -> None:
    """Raise `ConfigError` unless the weights have a language model."""
    kind = weights.config.get("model_type")
    if kind in LANGUAGE_TYPES or weights.is_multimodal:
        return
    right = ", ".join((*LANGUAGE_TYPES, "llava", *QWEN_VISION_TYPES))
    what = f"its model_type is {shown(kind)}, which makes no tokens; those of {right} do"
    raise refused(weights.directory, "model_type", kind, what)


def computed_planner(
    weights: WeightDirectory,
    tensor_parallel: int,
    pipeline_parallel: int = 1,
    dtype: str | None = None,
) -> WeightPlanner:
    """Return the planner of all that makes an output: all but layers for further tokens."""
    family = family_of(weights.config, weights.tensors, further=False)
    return WeightPlanner(weights, tensor_parallel, pipeline_parallel, dtype, family)


def language_planner(
    weights: WeightDirectory, tensor_parallel: int, dtype: str | None = None
) -> WeightPlanner:
    """Return the `computed_planner` of a language model, alone or of a model with an encoder.

    Tensors have the same names in both.

    Raises:
        ConfigError: as `WeightPlanner`, or the weights are those of a tower.
    """
    if weights.is_multimodal:
        family = module_family(weights.config, list(weights.tensors), language=True)
        part = weights.limited_to(family.found.tensors)
        return WeightPlanner(part, tensor_parallel, dtype=dtype, family=family)
    planner = computed_planner(weights, tensor_parallel, dtype=dtype)
    check_language(weights)
    return planner


def check_room_for_image(weights: WeightDirectory, tokens: int, seq_length: int) -> None:
    """Raise `ConfigError` if the tokens of an image leave none for text."""
    if seq_length <= tokens:
        what = (
            f"a sample has {counted(seq_length, 'token')}, and one image becomes {tokens}; give a "
            "--seq-length above that"
        )
        raise refused(weights.directory, "seq_length", seq_length, what)


def placeholder(weights: WeightDirectory) -> int | None:
    """Return the token id that represents an image in prompts; None without a tower."""
    return image_token(Fields(weights.config)) if weights.is_multimodal else None
