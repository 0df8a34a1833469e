"""The sample models: their entries, their shapes, and that they are built alike every time."""

from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from brisk_bench.samples import digits, encoder
from brisk_bench.samples.entries import SAMPLES, generate
from brisk_bench.samples.expectations import is_current, read_expectations

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"


def test_every_committed_entry_has_a_sample_and_the_other_way_round() -> None:
    entries = {file.parent.name for file in REPOSITORY.glob("*/config.pbtxt")}
    assert {sample.name for sample in SAMPLES} == entries


def test_a_generated_entry_holds_a_model_and_what_it_answers(tmp_path: Path) -> None:
    sample = next(sample for sample in SAMPLES if sample.name == "mlp")
    generate(sample, tmp_path)
    assert is_current(tmp_path)
    [expectation] = read_expectations(tmp_path)
    probabilities = expectation.outputs["probabilities"]
    assert probabilities.shape == (3, 10)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)


def test_generating_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    sample = next(sample for sample in SAMPLES if sample.name == "mlp")
    generate(sample, tmp_path / "a")
    generate(sample, tmp_path / "b")
    first, second = ((tmp_path / part / "1" / "model.onnx").read_bytes() for part in "ab")
    assert first == second


def test_the_digits_network_learns() -> None:
    recipe = digits.DigitsRecipe(channels=(16, 32), pooled=0, epochs=3, seed=1)
    model = digits.train_digits("digits", recipe)
    split = digits.digits_split()
    [digit] = ReferenceEvaluator(model).run(["digit"], {"image": split.test_images})
    assert (digit[:, 0] == split.test_labels).mean() > 0.7  # ten classes; chance is 0.1


def test_the_encoder_ignores_what_is_masked_and_keeps_operators_decomposed() -> None:
    model = encoder.build_encoder("encoder", seed=6)
    operators = {node.op_type for node in model.graph.node}
    assert operators.isdisjoint({"LayerNormalization", "Gelu", "Attention"})
    assert {"ReduceMean", "Erf", "Softmax", "Reshape", "Transpose"} <= operators
    evaluator = ReferenceEvaluator(model)
    tokens = np.array([[5, 6, 7, 8]], np.int64)
    others = np.array([[5, 6, 9, 10]], np.int64)
    mask = np.array([[1, 1, 0, 0]], np.int64)
    answers = [
        evaluator.run(
            None,
            {
                "input_ids": each,
                "attention_mask": mask,
                "token_type_ids": np.zeros_like(each),
            },
        )[0]
        for each in (tokens, others)
    ]
    np.testing.assert_allclose(answers[0][:, :2], answers[1][:, :2], rtol=1e-5, atol=1e-6)
    assert not np.allclose(answers[0][:, 2:], answers[1][:, 2:])


def test_models_follow_the_operator_set_they_claim() -> None:
    for sample in SAMPLES:
        if sample.name in ("mlp", "resnet18_ort"):
            for build in sample.versions.values():
                onnx.checker.check_model(build(), full_check=True)
