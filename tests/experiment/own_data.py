import torch

from mimokit.engine import TrainingData

WORDS, PLACEHOLDER, ROW = 12, 16, 18


def collate(samples):
    """Make a batch of samples, each of which is an image and the words that follow it."""
    images = torch.stack([image for image, _ in samples])
    words = torch.stack([text for _, text in samples])  # [samples, words]
    tokens = torch.cat([torch.full((len(samples), 1), PLACEHOLDER), words], dim=1)
    after = tokens[:, 1:]
    return {
        "input_ids": tokens[:, :-1],
        "labels": after,
        "loss_mask": (after != PLACEHOLDER).float(),
        "position_ids": torch.arange(tokens.shape[1] - 1).expand(len(samples), -1),
        "modality_inputs": {
            "images": {
                "items_per_sample": torch.ones(len(samples), dtype=torch.int64),
                "my_encoder": {"pixel_values": images},
            }
        },
    }


def samples(seed, number):
    """Make images of one brightness, and the word for it repeated."""
    generator = torch.Generator().manual_seed(seed)
    shades = torch.randint(WORDS, (number,), generator=generator)
    return [(torch.full((1, 8, 8), n / WORDS), torch.full((ROW,), int(n))) for n in shades]


def shades(config):
    train, test = samples(1, config.data.dataset_size), samples(2, 256)
    return TrainingData("shades", train, collate, test)
