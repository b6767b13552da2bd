def test_the_text_about_64_gpus() -> None:
    said = text("00_plan_a_layout.ipynb")
    preset = mimokit.load_preset("llava_7b_homogeneous")
    sizes = {"tensor_parallel": 2, "data_parallel": 32}
    first = preset.with_layout("homogeneous", images=sizes, language_module=sizes)
    assert mimokit.plan(first).world_size == 64
    assert "tensor parallel 2, 32 replicas" in said
    colocated = mimokit.plan(first.with_layout("colocated", images={"tensor_parallel": 1}))
    images = colocated.modules["images"]
    assert f"(TP {images.tensor_parallel}, DP {images.data_parallel})" in said
    assert (colocated.bridges[0].direction, colocated.bridges[0].ratio) == ("fan-in", 2)
    apart = mimokit.plan(
        first.with_layout(
            "heterogeneous", images={"data_parallel": 4}, language_module={"data_parallel": 28}
        )
    )
    images, language = apart.modules["images"], apart.modules[LANGUAGE]
    assert f"{images.size} separate ranks (TP 2, DP {images.data_parallel})" in said
    assert f"the other {language.size} (TP 2, DP {language.data_parallel})" in said
    assert f"to {4 * preset.model.get_architecture('images').seq_length} (four images" in said
    assert "7 billion parameters" in said
    parameters = model_of_config(preset.model).language.parameters
    assert round(parameters / 1e9) == 7
