# SPDX-License-Identifier: Apache-2.0
"""A student, its heads and teachers on the same images (divergences: Co-advise, arXiv:2106.12378, Table 5)."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import viticulture
from viticulture.cli import main
from viticulture.config.resolve import resolve
from viticulture.evaluation.agreement import Agreement, agree, both_wrong, divergences, read_agreement, same_prediction
from viticulture.evaluation.model import all_logits, heads_of
from viticulture.keywords import rebuilt
from viticulture.models.data_spec import DataSpec
from viticulture.models.heads import every_head
from viticulture.models.students import create_student
from viticulture.models.tta import TTA_KEY, TTAModel
from viticulture.models.weights.files import load, note, save
from viticulture.study.outcomes import other_measure
from viticulture.training.run_inputs import config_of, dataset_of

DIGITS = DataSpec(tuple(map(str, range(10))), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TINY = {"embed_dim": 8, "depth": 1, "num_heads": 2}


def test_divergences_are_those_from_teacher_to_head_in_nats() -> None:
    """sum_c t_c log(t_c / h_c), mean over images; rows are heads, columns teachers."""
    generator = torch.Generator().manual_seed(0)
    heads, teachers = (3 * torch.randn(n, 7, 5, generator=generator, dtype=torch.float64) for n in (3, 2))
    found = divergences(heads, teachers)
    for m in range(3):
        for k in range(2):
            t, h = teachers[k].softmax(-1), heads[m].softmax(-1)
            assert found[m, k].item() == pytest.approx((t * (t / h).log()).sum(-1).mean().item())
    assert divergences(heads, heads).diagonal().abs().max() < 1e-12


def test_pairs_are_counted_image_by_image() -> None:
    labels = torch.tensor([0, 1, 2, 3, 4])
    predictions = torch.tensor([[0, 1, 2, 0, 0], [0, 2, 2, 0, 1]])  # wrong: 3, 4 and 1, 3, 4
    assert (5 * both_wrong(predictions, labels)).round().tolist() == [[2, 2], [2, 3]]
    assert same_prediction(predictions).tolist() == [[1, 0.6], [0.6, 1]]


def test_a_head_and_its_teacher_may_share_a_name() -> None:
    logits = {name: torch.randn(6, 4) for name in ("class", "conv")}
    found = agree(logits["class"], logits, {"conv": logits["conv"]}, torch.zeros(6, dtype=torch.int64))
    assert list(found["accuracy"]) == ["student", "class token", "conv token", "conv"]
    assert found["divergence"][1][0] == pytest.approx(0, abs=1e-9)
    assert found["same_prediction"][2][3] == 1


@pytest.mark.parametrize("name", ["cit_tiny", "resnet10", "deit_tiny_distilled_patch16_224", "vit_nano"])
@pytest.mark.parametrize("inference", ["class", "mean"])
def test_the_inference_rule_is_found_from_outputs(name: str, inference: str) -> None:
    sizes = {
        "cit_tiny": {**TINY, "tokens": 2, "inference": inference},
        "resnet10": {"heads": 3, "inference": inference, "small_images": True},
        "deit_tiny_distilled_patch16_224": TINY,
        "vit_nano": TINY,
    }
    torch.manual_seed(0)
    student = create_student(name, DIGITS, None if name == "resnet10" else 4, sizes[name]).eval()
    images = torch.randn(4, 3, 8, 8)
    taught = {"guides": {"co_advise": {"teachers": {"conv": "runs/a", "inv": "runs/b"}}}}
    heads = heads_of(student, images, resolve("test", taught))
    logits = all_logits(student, images)
    torch.testing.assert_close(heads.combine(logits), student(images))
    if name in ("cit_tiny", "resnet10"):
        assert heads.rule == {"class": "class token", "mean": "mean of 3 heads"}[inference]
        assert heads.names == ("class", "conv", "inv")
        assert not torch.allclose(logits[0], logits.mean(0))
    else:
        assert heads.rule == ("its one head" if name == "vit_nano" else "mean of 2 heads")


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], viticulture.Run]:
    """Train CiTs on digits under two teachers, by inference rule."""
    root = tmp_path_factory.mktemp("advised")
    for seed, name in enumerate(("conv", "inv")):
        torch.manual_seed(seed)
        save(create_student("vit_nano", DIGITS, 4, TINY), root / name, DIGITS)
    known: dict[str, viticulture.Run] = {}

    def run(inference: str) -> viticulture.Run:
        if inference not in known:
            overrides: dict[str, Any] = {
                "student.name": "cit_tiny", "student.patch_size": 4,
                "student.options": {**TINY, "tokens": 2, "inference": inference},
                "guides.co_advise": {"teachers": {name: str(root / name) for name in ("conv", "inv")}},
                "data.per_class": 3, "data.val_fraction": 0, "train.epochs": 1, "train.batch_size": 10,
                "schedule.warmup_epochs": 0, "engine.device": "cpu",
            }  # fmt: skip
            known[inference] = viticulture.train(
                "digits", "default/digits", out=str(root / inference), overrides=overrides
            )
        return known[inference]

    return run


def by_hand(run: viticulture.Run) -> tuple[tuple[Tensor, ...], Tensor]:
    """Every head's logits on the test images, and labels."""
    dataset = dataset_of(run.folder, config_of(run.folder))
    assert dataset.test is not None
    student, data_spec, _ = load(run.folder.weights("last"))
    pixels = torch.stack([torch.from_numpy(dataset.test.original(i)) for i in range(len(dataset.test))])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data_spec.mean, data_spec.std))
    images = (pixels.permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        return every_head(student.eval(), images), dataset.test.records.labels


@pytest.mark.parametrize("inference", ["class", "mean"])
def test_every_result_names_its_inference_rule(
    advised: Callable[[str], viticulture.Run], inference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = advised(inference)
    heads, labels = by_hand(run)
    answer = heads[0] if inference == "class" else torch.stack(heads).mean(0)
    rule = {"class": "class token", "mean": "mean of 3 heads"}[inference]
    evaluation = run.results["last/test"]
    assert evaluation.rule == rule
    assert evaluation.top1 == pytest.approx((answer.argmax(-1) == labels).double().mean().item())
    assert main(["evaluate", str(run.path)]) == 0
    assert rule in capsys.readouterr().out
    assert "predicted by" in (page := (run.path / "report.html").read_text())
    assert rule in page


@pytest.mark.parametrize("inference", ["class", "mean"])
def test_heads_and_teachers_are_evaluated_on_the_test_images(
    advised: Callable[[str], viticulture.Run], inference: str
) -> None:
    run = advised(inference)
    found = read_agreement(run.folder)
    assert found is not None
    assert found == rebuilt(Agreement, json.loads(json.dumps(dataclasses.asdict(found))))
    heads, labels = by_hand(run)
    assert found.accuracy is not None
    assert list(found.accuracy) == ["student", "class token", "conv token", "inv token", "conv", "inv"]
    for name, logits in zip(("class token", "conv token", "inv token"), heads, strict=True):
        assert found.accuracy[name] == pytest.approx((logits.argmax(-1) == labels).double().mean().item())
    assert found.accuracy["student"] == run.accuracy
    assert (found.images, found.split, found.rule) == (len(labels), "test", run.results["last/test"].rule)
    assert other_measure(run.folder, "divergence/inv/conv") == {"test": found.divergence[2][0]}
    assert other_measure(run.folder, "divergence/inv/other") == {}
    conv = load(run.path.parent / "conv")[0].eval()
    dataset = dataset_of(run.folder, config_of(run.folder))
    assert dataset.test is not None
    pixels = torch.stack([torch.from_numpy(dataset.test.original(i)) for i in range(len(labels))]).permute(0, 3, 1, 2)
    with torch.no_grad():
        advice = conv((pixels / 255 - 0.5) / 0.25)
    expected = divergences(torch.stack(list(heads)), advice[None])
    assert [row[0] for row in found.divergence] == pytest.approx(expected[:, 0].tolist(), rel=1e-4)
    page = (run.path / "report.html").read_text()
    assert ">KL</abbr> from inv" in page
    assert "both are wrong" in page


def test_a_student_with_tta_is_compared_with_its_heads(
    advised: Callable[[str], viticulture.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = advised("mean")
    config, before = run.folder.weights("last") / "config.json", read_agreement(run.folder)
    as_it_was = config.read_bytes()
    assert before is not None
    assert before.accuracy is not None

    def by_brightness(network: TTAModel, images: Tensor) -> Tensor:
        return torch.eye(10)[(images > 0).sum((1, 2, 3)) % 10]  # whole numbers, on every processor the same

    monkeypatch.setattr(TTAModel, "forward", by_brightness)
    try:
        note(run.folder.weights("last"), {TTA_KEY: "four"})
        viticulture.evaluate(str(run.path))
        found = read_agreement(run.folder)
        assert found is not None
        assert found.accuracy is not None
        assert found.rule == "mean of 3 heads, 4 views"
        assert found.accuracy["student"] == run.accuracy != before.accuracy["student"], "else one view would pass"
        assert found.accuracy == {**before.accuracy, "student": run.accuracy}
        assert found.divergence == before.divergence
    finally:
        config.write_bytes(as_it_was)
        viticulture.evaluate(str(run.path))


def test_a_missing_teacher_is_named_and_the_rest_evaluated(
    advised: Callable[[str], viticulture.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = advised("mean")
    before = read_agreement(run.folder)
    gone = run.path.parent / "inv" / "model.safetensors"
    weights = load_file(gone)
    gone.unlink()
    try:
        assert main(["evaluate", str(run.path)]) == 0
        assert read_agreement(run.folder) == before
        (run.path / "agreement.json").unlink()
        assert main(["evaluate", str(run.path)]) == 0
        found = read_agreement(run.folder)
        assert found is not None
        assert "inv" in found.missing
        assert found.accuracy is None
        assert "could not be evaluated" in (run.path / "report.html").read_text()
    finally:
        save_file(weights, gone, {"format": "pt"})


def test_a_run_without_teachers_has_no_such_part(tmp_path: Path) -> None:
    run = viticulture.train(
        "digits", "default/digits", out=str(tmp_path / "run"),
        overrides={"train.epochs": 1, "schedule.warmup_epochs": 0, "data.per_class": 3, "engine.device": "cpu"},
    )  # fmt: skip
    assert read_agreement(run.folder) is None
    assert "answered by" not in (run.path / "report.html").read_text()
