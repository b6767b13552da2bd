"""What a prediction supposes beside model, layout and samples."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mimokit.config.base import ConfigModel, Name

PositiveFloat = Annotated[float, Field(gt=0)]


class PredictedInput(ConfigModel):
    """What an encoder sees of a sample, on average.

    Attributes:
        length: patches of one image, or positions of one window of audio.
        count: images or windows per sample. None: as many as fill the tokens of the data section.
        imbalance: work of the fullest rank over that of the average rank. None: 1, which is even.
    """

    length: Annotated[int, Field(ge=1)]
    count: PositiveFloat | None = None
    imbalance: Annotated[float, Field(ge=1)] | None = None


class PredictionConfig(ConfigModel):
    """What predictions and searches take from a file; a run looks at none of it.

    Attributes:
        gpu: a GPU by name, or a hardware file. None: h100.
        price_per_gpu_hour: in dollars, for the cost per million tokens.
        software: the training stack. None: megatron-bridge.
        inputs: encoder -> what it sees; left out: images and windows of full size.
    """

    gpu: Annotated[str, Field(min_length=1)] | None = None
    price_per_gpu_hour: PositiveFloat | None = None
    software: Name | None = None
    inputs: dict[Name, PredictedInput] | None = None
