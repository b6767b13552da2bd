"""What a user's own data can do to a run: each is refused in a sentence, or works."""

import dataclasses

import pytest
import torch

import mimokit
from mimokit.cluster import RankError
from mimokit.engine.data.batch import tensors_by_encoder
from mimokit.engine.data.check import check_batch, check_keys, check_words
from mimokit.engine.data.sources import data_of, default_data
from mimokit.engine.training.evaluation import count_right, most_likely
from mimokit.experiment import train, verify
from tests.evaluations import QUICK
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_config, apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE
from tests.rows import rows

VOCABULARY = 16
DATA = apart_config((1, 1, 1), (1, 1, 1)).data


def _source(change=lambda batch: None, **parts):
    """Return the digits with every batch changed, and other parts of the data replaced."""

    def source(config):
        data = default_data(config)

        def collate(samples):
            batch = data.collate_fn(samples)
            change(batch)
            return batch

        return dataclasses.replace(data, collate_fn=collate, **parts)

    return source


def _batch():
    data = default_data(apart_config((1, 1, 1), (1, 1, 1)))
    return data.collate_fn([data.train[number] for number in range(4)])


def _inputs(batch):
    return batch["modality_inputs"]["images"]


WRONG = {
    "a batch of other samples": (
        lambda b: b.update(input_ids=b["input_ids"][:3]),
        r"input_ids of shape \(3, 42\), but it was made of 4 samples; they must be",
    ),
    "no mask": (lambda b: b.pop("loss_mask"), "has loss_mask not at all; a collate function gives"),
    "a list": (lambda b: b.update(labels=[1]), "has labels as a list; a collate function gives"),
    "labels that are shorter": (
        lambda b: b.update(labels=b["labels"][:, 1:]),
        r"labels of shape \(4, 41\), but input_ids of \(4, 42\); both must be",
    ),
    "a label outside the vocabulary": (
        lambda b: b["labels"].masked_fill_(b["loss_mask"] > 0, 99),
        r"Sample 0 of the batch has the label 99, but data.vocab_size is 16; set loss_mask to 0",
    ),
    "items of other samples": (
        lambda b: _inputs(b).update(items_per_sample=torch.ones(3, dtype=torch.int64)),
        "'images' in the batch need items_per_sample with 4 entries, .* there are 3",
    ),
    "a weight in the mask": (
        lambda b: b["loss_mask"].mul_(0.5),
        "has a loss_mask with values other than 0 and 1; a label counts or does not",
    ),
    "rows that are too long": (
        lambda b: b.update(input_ids=torch.nn.functional.pad(b["input_ids"], (0, 2))),
        "has rows of 44 tokens, but data.seq_length is 42; cut them, or raise that",
    ),
    "tensors that are not an encoder's": (
        lambda b: _inputs(b).update(pixels=torch.ones(4)),
        "'images' in the batch have pixels and vit_encoder entries next to items_per_sample; give",
    ),
    "no items": (lambda b: _inputs(b).pop("items_per_sample"), "there are none"),
    "a pixel that is no number": (
        lambda b: _inputs(b)["vit_encoder"]["pixel_values"][0].fill_(float("nan")),
        "pixel_values of module 'images' in the batch hold values that are not finite",
    ),
}


@rows("change, told", *WRONG.values())
def test_a_batch_that_is_none(change, told):
    batch = _batch()
    check_batch(batch, 4, DATA)
    change(batch)
    with pytest.raises(ValueError, match=told):
        check_batch(batch, 4, DATA)


def test_inputs_of_more_encoders_than_there_are():
    batch = _batch()
    _inputs(batch).update(dino={"pixel_values": torch.ones(4)})
    check_batch(batch, 4, DATA)
    assert set(tensors_by_encoder("images", ["dino", "vit_encoder"], _inputs(batch))) == {
        "dino", "vit_encoder"
    }  # fmt: skip
    with pytest.raises(ValueError, match="have dino and vit_encoder entries next to items_per_s"):
        tensors_by_encoder("images", ["vit_encoder"], _inputs(batch))


def test_what_nothing_reads():
    batch = _batch()
    check_keys(batch)
    with pytest.raises(ValueError, match="has attention_mask, which mimokit does not read; att"):
        check_keys({**batch, "attention_mask": None})
    with pytest.raises(ValueError, match="has weights, which mimokit does not read; leave it out"):
        check_keys({**batch, "weights": None})


def test_no_batch_at_all():
    with pytest.raises(ValueError, match="gave a NoneType; a batch is a dictionary with input_ids"):
        check_batch(None, 4, DATA)


def test_labels_that_do_not_count_may_be_anything():
    batch = _batch()
    batch["labels"][batch["loss_mask"] == 0] = -100
    check_batch(batch, 4, DATA)


def test_words_without_an_embedding():
    ids = torch.tensor([[3, 15], [16, 17]])
    check_words(ids, [16, 17], VOCABULARY)
    with pytest.raises(ValueError, match=r"Sample 1 .* token id 17, but .* has 16 .* are 16\."):
        check_words(ids, [16], VOCABULARY)


@rows(
    "source, told",
    (lambda config: None, "The data function gave a NoneType; it must give a TrainingData"),
    (_source(test=range(0)), "test set has 0 samples; give it at least one, or give no test"),
)
def test_a_data_function_that_gives_something_else(source, told):
    with pytest.raises((TypeError, ValueError), match=told):
        data_of(source, apart_config((1, 1, 1), (1, 1, 1)))


def test_a_sample_without_an_answer_is_not_exactly_right(one_rank):
    logits = torch.eye(4)[torch.tensor([[1, 2], [1, 2]])]
    labels, asked = torch.tensor([[1, 2], [3, 3]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    predicted = most_likely(logits, one_rank)
    counts = count_right(logits, predicted, labels, asked, one_rank)
    exact, samples, right, tokens, _ = counts.tolist()
    assert (exact, samples, right, tokens) == (1, 1, 2, 2)


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


UNREADABLE = 5


def _apart(**runtime):
    return apart_config((1, 1, 2), (1, 2, 1), 2, **runtime)


def _readers(sample):
    """Return the ranks that read a sample: any of them may be the first to say so."""
    batches = mimokit.plan(_apart()).batch.modules.values()
    found = {rank: batch.loaded[rank] for batch in batches for rank in batch.loads}
    return [rank for rank, (start, stop) in sorted(found.items()) if start <= sample < stop]


READERS = "".join(map(str, _readers(UNREADABLE)))


class Failing:
    """A data set of which one sample of the micro-batch cannot be read."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        if index.sample == UNREADABLE:
            raise OSError("the disk is gone")
        return self.data[index]


def _failing(config):
    data = default_data(config)
    return dataclasses.replace(data, train=Failing(data.train))


def _unknown_word(batch):
    batch["input_ids"][0, -1] = 99


def test_half_of_the_encoder_reads_other_samples():
    assert READERS == "123"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (_failing, f"rank [{READERS}] raised OSError: the disk is gone"),
        (_source(_unknown_word), "Sample 0 of the batch has the token id 99, but the language"),
        (_source(train=iter([1])), "list_iterator without a length; give one with __len__"),
    ],
    ids=["a disk", "a word", "no length"],
)
def test_all_ranks_come_back_with_a_sentence(cluster, tmp_path, source, told):
    config = _apart(num_iterations=2)
    with pytest.raises(RankError, match=told):
        train(cluster, config, source, directory=tmp_path).result()


def test_training_that_diverges_ends_before_it_spoils_the_weights(cluster, tmp_path):
    config = apart_config((1, 1, 1), (1, 1, 1), num_iterations=9, learning_rate=1e30)
    told = (
        r"DivergedError: The gradient norm of iteration \d is (nan|inf), and its weights are left"
    )
    run = train(cluster, config, directory=tmp_path)
    with pytest.raises(RankError, match=told):
        run.result()
    assert run.samples
    assert_computes_the_same(cluster, apart_config((1, 1, 1), (1, 1, 1)))


def _no_images(batch):
    """Leave the words alone, as a micro-batch without a picture has them."""
    for inputs in batch["modality_inputs"].values():
        inputs["items_per_sample"] = torch.zeros_like(inputs["items_per_sample"])
        for name, tensors in inputs.items():
            if name != "items_per_sample":
                inputs[name] = {key: tensor[:0] for key, tensor in tensors.items()}
    ids = batch["input_ids"]
    ids[ids >= VOCABULARY] = 0


def _nothing_to_learn(batch):
    batch["loss_mask"].zero_()


EMPTY = {
    "no image": (apart_config((2, 1, 1), (1, 2, 2), 2), _no_images),
    "no image, recording or grid": (
        apart_multimodal_config({"qwen": (1, 2, 1), "audio": (1, 1, 2), LANGUAGE: (1, 1, 2)}, 2),
        _no_images,
    ),
    "nothing to learn": (apart_config((1, 1, 2), (1, 2, 1), 2), _nothing_to_learn),
}


@pytest.mark.parametrize(("config", "change"), EMPTY.values(), ids=EMPTY)
def test_whole_microbatches_without(cluster, config, change):
    report = verify(cluster, config, _source(change), steps=2)
    assert report.passed, report.verdict


def test_a_run_that_learns_nothing_is_tested(cluster, tmp_path):
    config = apart_config((1, 1, 1), (1, 1, 1), num_iterations=1)
    source = _source(_nothing_to_learn)
    result = train(cluster, config, source, evaluations=QUICK, directory=tmp_path).result()
    assert result.steps["loss"].tolist() == [0.0, 0.0]
    assert result.evaluations["exact_match"].tolist() == [0.0]
