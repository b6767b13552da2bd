"""A LLaVA of Hugging Face as an experiment, and what cannot become one."""

import json
from pathlib import Path

from mimokit.config_files import load_experiment_config
from mimokit.experiment.prepare import finalized_copy
from tests.cli.call import call
from tests.hugging_face_weights import checkpoint
from tests.llava import IMAGE_TOKEN, llava_checkpoint
from tests.rows import rows

SIZES = {
    ("homogeneous", 4): ((1, 4, 0), (1, 4, 0), 1),
    ("colocated", 4): ((1, 4, 0), (4, 1, 0), 4),
    ("heterogeneous", 8): ((1, 4, 0), (4, 1, 4), 4),
    ("heterogeneous", 5): ((1, 2, 0), (2, 1, 2), 2),
}
"""Mode and ranks -> tensor parallel, data parallel and first rank of both modules; batch size."""


@rows("mode, ranks", *SIZES)
def test_a_directory_becomes_a_file_that_runs(mode: str, ranks: int, tmp_path: Path) -> None:
    directory, file = llava_checkpoint("clip_full"), tmp_path / "llava.yaml"
    line = ["import", str(directory), "--mode", mode, "--gpus", str(ranks), "--output", str(file)]
    done = call(*line)
    assert done.exit_code == 0, done.output
    config = finalized_copy(load_experiment_config(file))
    found = [
        (one.tensor_parallel, one.data_parallel, one.rank_offset)
        for one in map(config.model.get_parallelism, ("images", "language_module"))
    ]
    assert (*found, config.data.base_batch_size) == SIZES[mode, ranks]
    images, words = map(config.model.get_architecture, ("images", "language_module"))
    assert images.weights == words.weights == str(directory)
    assert (images.num_layers, images.keep_class_token, words.tied_embeddings) == (2, True, True)
    assert config.model.special_token_ids == {"images": IMAGE_TOKEN}
    assert (config.data.seq_length, config.data.image_seq_length) == (64, 5)
    assert config.name == "llava-clip_full"


def test_the_experiment_as_json() -> None:
    done = call("import", llava_checkpoint("clip"), "--json")
    found = json.loads(done.stdout)
    assert found["model"]["deployment_mode"] == "homogeneous"
    assert found["data"]["image_seq_length"] == 4


@rows(
    "options, sentence",
    (("--seq-length", "4"), "a sample has 4 tokens, and one image becomes 4; give a --seq"),
    (("--gpus", "0"), "--gpus is 0; a homogeneous layout needs at least 1."),
    (("--mode", "heterogeneous", "--gpus", "1"), "a heterogeneous layout needs at least 2."),
    (("--mode", "pipeline"), "pipeline"),
    (("--model", "llama-3-8b"), "Option --model: "),
)
def test_options_that_a_directory_does_not_take(options: tuple[str, ...], sentence: str) -> None:
    done = call("import", llava_checkpoint("clip"), *options)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_checkpoint_of_one_part_is_named_by_a_field() -> None:
    done = call("import", checkpoint("llama"))
    assert done.exit_code == 2
    assert "its model_type is 'llama'; only llava becomes an experiment" in done.stderr


def test_an_option_of_directories_for_a_file() -> None:
    done = call("import", "preset:llava_7b_colocated", "--mode", "colocated")
    assert done.exit_code == 2
    assert "Option --mode: 'preset:llava_7b_colocated' is not a directory" in done.stderr
