# SPDX-License-Identifier: Apache-2.0
"""`viticulture localize`: from a run and a box file to a table."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from refusals import refused
from viticulture import api
from viticulture.cli import main
from viticulture.evaluation.localization.boxes import read_boxes
from viticulture.evaluation.localization.evaluate import (
    Localization,
    class_taps,
    held_out,
    localize,
    other_images,
    read_localizations,
    save,
)
from viticulture.evaluation.localization.metrics import AS_EVALUATED, BoxAccuracy
from viticulture.keywords import rebuilt
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.scores.objects import box_overlaps
from viticulture.study.outcomes import other_measure
from viticulture.study.paper_tables import read_table
from viticulture.training.run_inputs import config_of, dataset_of

SIZE = (20, 32)  # H x W, of which a square student sees the middle 20 columns


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[api.Run, Path]:
    """Train an epoch on noise, with the box file of its test images."""
    root, draw, lines = tmp_path_factory.mktemp("boxes"), np.random.default_rng(0), []
    for split, count in (("train", 4), ("test", 3)):
        for name in ("a", "b"):
            (root / "photos" / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = draw.integers(0, 255, (*SIZE, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "photos" / split / name / f"{i}.png")
    for name in ("a", "b"):
        lines += [f"{name}/0.png 10 3 21 12", f"{name}/0.png 0 0 3 3", f"{name}/1.png 0 0 4 19"]  # 1: out of view
    lines.remove("b/1.png 0 0 4 19")
    (root / "boxes.txt").write_text("\n".join(lines))
    small = {"student.name": "vit_nano", "train.epochs": 1, "train.batch_size": 4, "images.image_size": 20}
    run = api.train(
        str(root / "photos"), "default/small-images", out=str(root / "run"),
        overrides={**small, "student.patch_size": 4, "engine.device": "cpu", "schedule.warmup_epochs": 0},
    )  # fmt: skip
    return run, root / "boxes.txt"


def test_images_with_a_box_in_view_are_evaluated(trained: tuple[api.Run, Path]) -> None:
    """Two of six images count; a box around the whole view overlaps theirs by 0.3 exactly."""
    run, file = trained
    dataset = dataset_of(run.folder, config_of(run.folder))
    found = localize(run.folder, held_out(dataset), read_boxes(file), protocol=AS_EVALUATED)
    assert (found.images, found.left_out) == (2, 4)
    assert found.everything.accuracies == (1, 0, 0)
    assert found.largest.accuracies[0] == 1, "threshold 0 draws the whole image"
    assert all(
        any_part >= part for any_part, part in zip(found.any_part.accuracies, found.largest.accuracies, strict=True)
    )


def test_the_published_protocol_resizes_whole_images(trained: tuple[api.Run, Path]) -> None:
    run, file = trained
    dataset = dataset_of(run.folder, config_of(run.folder))
    found = localize(run.folder, held_out(dataset), read_boxes(file))
    assert (found.images, found.left_out, found.protocol) == (3, 3, "published")
    np.testing.assert_allclose(found.examples[0].true[0], [6.25, 3, 13.75, 13])
    assert found.examples[0].view.shape == (20, 20, 3)
    assert rebuilt(Localization, found.to_dict()).protocol == "published"


def test_a_row_of_table_c_is_read_from_the_result(trained: tuple[api.Run, Path]) -> None:
    """MaxBoxAcc at 0.3, at 0.5, and their mean, as AAL's Table C has it."""
    folder = trained[0].folder
    assert other_measure(folder, "localization/0.3") == {}
    largest, rest = BoxAccuracy((0.5, 0.2, 0.1), (0.0, 0.0, 0.0)), BoxAccuracy((0.9, 0.8, 0.7), (0.0, 0.0, 0.0))
    save(folder, "", Localization("last", 2, 4, largest, rest, rest))
    wanted = {"0.3": 0.5, "0.5": 0.2, "0.3,0.5": 0.35, "0.3,0.5,0.7": 0.8 / 3}
    for overlaps, share in wanted.items():
        assert other_measure(folder, f"localization/{overlaps}") == {"test": pytest.approx(share)}
    measures = {row.measure.partition("/")[2] for row in read_table("attention_link/tableC").rows} - {""}
    assert measures == set(wanted)
    (folder.path / "localization.json").unlink()
    save(folder, "", Localization("last", 2, 4, largest, rest, rest, protocol="evaluation"))
    assert other_measure(folder, "localization/0.3") == {}, "another protocol's number is none of the table's"
    (folder.path / "localization.json").unlink()


def test_attention_to_bright_patches_finds_bright_boxes(trained: tuple[api.Run, Path], tmp_path: Path) -> None:
    """Weights by hand: the class token attends to bright patches in every layer and head."""
    shutil.copytree(trained[0].path, tmp_path / "run")
    run = api.Run(tmp_path / "run")
    file = run.folder.weights(run.folder.which()[0]) / "model.safetensors"
    weights = {key: torch.zeros_like(value) for key, value in load_file(file).items()}
    for key, value in weights.items():
        if key == "cls_token":
            value[..., 0] = 1
        elif key == "patch_embed.proj.weight":
            value[0] = 1
        elif "norm" in key and key.endswith("weight"):
            value.fill_(1)
        elif key.endswith("attn.qkv.weight"):
            value[: 2 * len(value) // 3, 0] = 1
    save_file(weights, file)
    boxes = {
        "a/1.png": (10, 4, 22, 12),
        "b/0.png": (6, 8, 14, 16),
        "b/1.png": (18, 0, 26, 20),
        "b/2.png": (6, 0, 14, 8),
    }
    for name, (left, top, right, bottom) in {"a/0.png": (0, 0, 9, 9), **boxes}.items():
        pixels = np.full((*SIZE, 3), 60, dtype=np.uint8)
        pixels[top:bottom, left:right] = 200
        if name == "b/2.png":
            pixels[8:, 18:] = 200  # a larger part beside the object
        (tmp_path / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "new" / name)
    true = {name: np.array([box], dtype=np.float64) for name, box in boxes.items()}
    found = localize(run.folder, other_images(run.folder, str(tmp_path / "new")), true, "", AS_EVALUATED)
    assert (found.images, found.left_out) == (4, 1)
    assert found.largest.accuracies == (0.75, 0.75, 0.75)
    assert found.any_part.accuracies == (1, 1, 1)
    assert found.everything.accuracies[1:] == (0, 0)
    assert [one.name for one in found.examples] == list(boxes)
    for one in found.examples[:3]:
        left, top, right, bottom = one.true[0].astype(int)
        inside = np.zeros(one.view.shape[:2], dtype=bool)
        inside[top:bottom, left:right] = True
        seen = one.view[inside].mean(), one.view[~inside].mean()
        np.testing.assert_allclose(seen, (200, 60), atol=25, err_msg="the store blurs edges, no more")
        assert box_overlaps(one.box, one.true)[0, 0] == one.overlap >= 0.5


def test_the_command_prints_a_table_and_names_mistakes(
    trained: tuple[api.Run, Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, file = trained
    photos = str(file.parent / "photos")
    evaluation = ["--protocol", "evaluation"]
    for words in (["--out", str(tmp_path / "page.html")], [photos]):
        assert main(["localise", str(run.path), *words, *evaluation, "--boxes", str(file)]) == 0
        shown = capsys.readouterr().out
        assert "MaxBoxAcc" in shown
        assert "100.0" in shown
        assert "4 images have no box in view" in " ".join(shown.split())
    page = (tmp_path / "page.html").read_text()
    assert page.count("<img") == 4
    assert f"of run {run.path} (recipe " in page
    assert "best weights, on photos; measured on 20" in page
    kept = read_localizations(run.folder)
    assert list(kept) == ["best/photos, evaluation", f"best/{photos}, evaluation"]
    assert [one.images for one in kept.values()] == [2, 2]
    assert kept["best/photos, evaluation"].largest.accuracies[0] == 1
    assert run.folder.path.joinpath("report.html").read_text().count("MaxBoxAccV2") == 2
    monkeypatch.chdir(file.parent)
    assert main(["localise", str(run.path), "photos", *evaluation, "--boxes", str(file)]) == 0
    assert list(read_localizations(run.folder)) == [*kept, "best/./photos, evaluation"], "the run's own result stays"
    (tmp_path / "b.txt").write_text("cat.png 1 2 3 4")
    (tmp_path / "far.txt").write_text("a/0.png 1 2 300 4")
    (tmp_path / "cut.txt").write_text("a/0.png 0 0 3 3")
    mistakes = {"": "--boxes", "b.txt": "none of the 6 images", "far.txt": "outside", "cut.txt": "cuts off every"}
    for name, said in mistakes.items():
        words = ["--boxes", str(tmp_path / name)] if name else []
        assert main(["localise", str(run.path), *evaluation, *words]) == 2
        assert said in capsys.readouterr().err
    assert main(["localise", str(run.path), "--protocol", "publishd", "--boxes", str(file)]) == 2
    assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options"), [("resnet10t", {}), ("vit_nano", {"class_token": False, "global_pool": "avg"})]
)
def test_a_student_without_class_attention_is_refused(name: str, options: dict[str, object]) -> None:
    data_spec = DataSpec(("a", "b"), (32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    student = create_student(name, data_spec, 4 if name == "vit_nano" else None, options)
    refused(r"class token's attention, and .* has none; .* --student vit_nano", class_taps, student)
