"""Strips of handwritten digits with a question: real scans, small enough for a laptop.

The scans are the 1,797 8x8 images that ship with scikit-learn (the test set of the UCI "Optical
Recognition of Handwritten Digits" data). A sample is a strip of 1 to 8 scans and a question; the
answer is the digits of the strip or their sum. Training and test strips have different scans.
"""

import functools
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from typing import Literal, TypedDict

import numpy as np
import torch
from torch.utils.data import Dataset

from mimokit.engine.data.iterators import place_of
from mimokit.planning.frames import SampleSizes
from mimokit.units import counted

Task = Literal["read", "sum"]
Split = Literal["train", "test"]

END_TOKEN = 10
READ_TOKEN = 11
SUM_TOKEN = 12
PADDING_TOKEN = 13
VOCABULARY = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "<end>", "<read>", "<sum>", "<pad>")
QUESTION_TOKENS: dict[str, int] = {"read": READ_TOKEN, "sum": SUM_TOKEN}

MAX_DIGITS = 8
IMAGE_SIZE = 8
TEST_FRACTION = 0.2


class DigitSample(TypedDict):
    """One strip.

    Attributes:
        images: [digits, 8, 8], float, 0 to 1.
    """

    images: torch.Tensor
    question: list[int]
    answer: list[int]


@functools.cache
def load_scans(split: Split) -> tuple[torch.Tensor, np.ndarray]:
    """Return the scans [n, 8, 8] scaled to 0..1 and their digits [n] of one split."""
    # `sklearn.datasets.load_digits` reads the same file, but imports scipy and pandas: 1.5 s.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    order = np.random.default_rng(0).permutation(len(table))
    held_out = int(len(order) * TEST_FRACTION)
    chosen = table[order[:held_out] if split == "test" else order[held_out:]]
    images = torch.tensor(
        chosen[:, :-1].reshape(-1, IMAGE_SIZE, IMAGE_SIZE) / 16.0, dtype=torch.float32
    )
    return images, chosen[:, -1].astype(np.int64)


class DigitStrips(Dataset[DigitSample]):
    """Strips of 1 to 8 scans, drawn at random but always the same for one index.

    Args:
        split: "train" or "test"; their scans are disjoint.
        task: "read" (write the digits of the strip), "sum" (write their sum) or None for both,
            alternating.
        frames: (micro-batch, sample of the global micro-batch) -> scans of the strip there, or
            None where it is drawn.
    """

    def __init__(
        self,
        split: Split = "train",
        task: Task | None = "read",
        size: int = 100_000,
        seed: int = 0,
        max_digits: int = MAX_DIGITS,
        frames: Callable[[int, int], int | None] | None = None,
    ) -> None:
        self.split = split
        self.task = task
        self.size = size
        self.seed = seed
        self.max_digits = max_digits
        self.frames = frames

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> DigitSample:
        if not 0 <= index < self.size:
            raise IndexError(f"Strip {index} asked for, but there are {self.size}.")
        images, digits = load_scans(self.split)
        generator, length = self._length(index)
        chosen = generator.integers(0, len(digits), size=length)
        values = digits[chosen].tolist()
        task: Task = self.task or ("read", "sum")[index % 2]
        return DigitSample(
            images=torch.from_numpy(images.numpy()[chosen]),  # torch takes twice as long
            question=[QUESTION_TOKENS[task]],
            answer=[*_answer(values, task), END_TOKEN],
        )

    def sample_sizes(self, index: int) -> SampleSizes:
        """Return the number of scans of a strip, without reading it."""
        return SampleSizes({"images": self._length(index)[1]})

    def _length(self, index: int) -> tuple[np.random.Generator, int]:
        generator = np.random.default_rng((self.seed, self.split == "test", index))
        drawn = int(generator.integers(1, max(self.max_digits, 1) + 1))
        stated = None if self.frames is None else self.frames(*place_of(index))
        return generator, drawn if stated is None else stated


def _answer(values: list[int], task: Task) -> list[int]:
    if task == "read":
        return values
    return [int(figure) for figure in str(sum(values))]


def chance_of_exact_match(
    task: Task, max_digits: int = MAX_DIGITS, lengths: Sequence[int] | None = None
) -> float:
    """Return the exact-match rate of the best guess that knows the strip's length but no scan.

    Reading: 10^-n, averaged over the lengths. Sum: the most frequent sum of n uniform digits.

    Args:
        lengths: of the strips; None: 1 to `max_digits`, equally often.
    """
    wanted = range(1, max_digits + 1) if lengths is None else lengths
    rates, sums = [1.0], np.ones(1)
    for length in range(1, max(wanted) + 1):
        sums = np.convolve(sums, np.full(10, 0.1))
        rates.append(10.0**-length if task == "read" else float(sums.max()))
    return float(np.mean([rates[length] for length in wanted]))


class DigitCollate:
    """Makes token sequences of strips: image tokens, question, answer, padding."""

    def __init__(
        self, seq_length: int, image_token_ids: Sequence[int], tokens_per_image: int
    ) -> None:
        self.seq_length = seq_length
        self.image_token_ids = image_token_ids
        self.tokens_per_image = tokens_per_image

    def __call__(self, samples: list[DigitSample]) -> dict[str, object]:
        """Return a batch in the form described in `mimokit.engine.data.batch`."""
        # One tensor of lists: a tensor for each sample would take as long as a layer.
        laid_out = [self._lay_out(sample) for sample in samples]
        tokens = torch.tensor([tokens for tokens, _ in laid_out])
        answered = torch.tensor([answered for _, answered in laid_out])
        labels = tokens[:, 1:].clone()
        for token in self.image_token_ids:
            labels[labels == token] = PADDING_TOKEN
        positions = torch.arange(self.seq_length).expand(len(samples), -1)
        return {
            "input_ids": tokens[:, :-1].contiguous(),
            "labels": labels,
            "loss_mask": answered[:, 1:].contiguous(),
            "position_ids": positions.contiguous(),
            "modality_inputs": {
                "images": {
                    "items_per_sample": torch.tensor([len(s["images"]) for s in samples]),
                    "vit_encoder": {"pixel_values": torch.cat([s["images"] for s in samples])},
                }
            },
        }

    def _lay_out(self, sample: DigitSample) -> tuple[list[int], list[float]]:
        """Return the tokens of a strip, and 1 where they are its answer."""
        rows = len(sample["images"]) * self.tokens_per_image
        images = [token for token in self.image_token_ids for _ in range(rows)]
        prompt = images + sample["question"]
        whole = prompt + sample["answer"]
        behind = self.seq_length + 1 - len(whole)
        if behind < 0:
            raise ValueError(
                f"A strip of {len(sample['images'])} digits needs "
                f"{counted(len(whole) - 1, 'token')} but data.seq_length is {self.seq_length}; "
                "raise it."
            )
        answered = [0.0] * len(prompt) + [1.0] * len(sample["answer"]) + [0.0] * behind
        return whole + [PADDING_TOKEN] * behind, answered
