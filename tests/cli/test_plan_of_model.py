"""`mimokit plan config.json`: a layout that fits on the named GPUs, or why there is none."""

import json
import os
from pathlib import Path
from typing import Any

from typer.testing import Result

import mimokit
from tests.cli.call import call
from tests.rows import rows

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
}
TOWER: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
LLAVA = {
    "model_type": "llava",
    "text_config": LLAMA,
    "vision_config": TOWER,
    "image_token_index": 32000,
    "vision_feature_layer": -2,
}


def planned(folder: Path, content: object, *options: str) -> Result:
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return call("plan", file, *options)


@rows("content", LLAMA, LLAVA)
def test_a_model_is_planned_on_the_gpus_that_there_are(tmp_path: Path, content: object) -> None:
    out = tmp_path / "planned.yaml"
    done = planned(tmp_path, content, "--gpus", "8", "--gpu", "h200", "--output", str(out))
    assert done.exit_code == 0
    assert "on 8 ranks" in done.stdout
    found = mimokit.predict(out, gpu="h200")
    assert found.layout.gpus == 8
    assert found.peak_memory < found.capacity
    assert mimokit.plan(out).batch.global_batch_size == 64
    assert set(found.layout.modules) > {"images"} or content is LLAMA


@rows(
    "gpus, batch, sentence",
    ("7", "64", "7 GPUs: it takes 4. The nearest numbers of GPUs that one takes all of: 4 and 8."),
    (
        "12",
        "7",
        "12 GPUs: it takes 7. The nearest numbers of GPUs that one takes all of: 8 and 14.",
    ),
)
def test_fewer_gpus_are_said(tmp_path: Path, gpus: str, batch: str, sentence: str) -> None:
    """Of a number that no layout divides, or whose replicas do not divide the batch."""
    done = planned(tmp_path, LLAMA, "--gpus", gpus, "--global-batch", batch)
    assert f"No layout takes all {sentence}" in " ".join(done.stdout.split())


@rows(
    "content, options, sentence",
    ("[1, 2", ["--gpus", "8"], "it is not JSON; give a config.json"),
    ([1], ["--gpus", "8"], "it is not a mapping; give a config.json"),
    ({"model_type": "mamba"}, ["--gpus", "8"], "model_type 'mamba' cannot be read; those of"),
    (
        {**LLAMA, "quantization_config": {"quant_method": "gptq"}},
        ["--gpus", "8"],
        "its weights are quantized (gptq), which is not trained; give",
    ),
    (LLAMA, [], "how many GPUs there are is not said; give --gpus"),
    (LLAMA, ["--gpus", "0"], "should be greater than or equal to 1"),
    (LLAMA, ["--gpus", "1"], "no layout fits on 1 x NVIDIA H100 SXM 80GB"),
    (LLAMA, ["--gpus", "8", "--gpu", "h10"], "did you mean h100"),
    (LLAMA, ["--gpus", "8", "--global-batch", "0"], "global_batch_size is 0"),
    (LLAMA, ["--gpus", "8", "--seq-length", "0"], "seq_length is 0"),
)
def test_what_cannot_be_planned_is_a_sentence(
    tmp_path: Path, content: object, options: list[str], sentence: str
) -> None:
    done = planned(tmp_path, content, *options)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())


@rows("kind", "pipe", "device", "deep")
def test_what_is_no_file_of_a_model_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "config.json"
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "deep":
            file.write_text("[" * 200_000)
    done = call("plan", file, "--gpus", "8")
    assert done.exit_code == 2
    assert "Hugging Face config" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == [file]


def test_options_for_a_model_are_refused_with_a_config() -> None:
    done = call("plan", "preset:llava_7b_colocated", "--gpus", "8")
    assert done.exit_code == 2
    assert "are for a config.json; leave them out" in " ".join(done.stderr.split())
