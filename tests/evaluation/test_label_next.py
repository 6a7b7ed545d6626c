# SPDX-License-Identifier: Apache-2.0
"""Unlabeled images to label next."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import viticulture
from refusals import refused
from trained import trained
from untrained import photo, untrained
from untrained_dense import untrained_dense
from viticulture.cli import main
from viticulture.evaluation import label_next
from viticulture.evaluation.label_next import as_labels, select
from viticulture.models.data_spec import DataSpec
from viticulture.models.weights.files import load, save
from viticulture.training.run import fit
from viticulture.training.session import begin

SPEC = DataSpec(("a", "b", "c"), (16, 16), (0.5,) * 3, (0.25,) * 3)


def gradients(p: Tensor, h: Tensor) -> Tensor:
    """The gradients of the cross-entropy by autograd, of a classifier of 3 classes, [N, C D]."""
    weight = torch.zeros(3, h.shape[1], dtype=torch.float64, requires_grad=True)
    logits = h @ weight.T + p.log()
    losses = torch.nn.functional.cross_entropy(logits, p.argmax(1), reduction="none")
    return torch.stack([torch.autograd.grad(loss, weight, retain_graph=True)[0].flatten() for loss in losses])


def test_images_are_chosen_by_their_gradients() -> None:
    """Algorithm 1 of the paper: the longest gradient first, then in proportion to squared distances to the nearest
    chosen one, here drawn from gradients by autograd. Catches: distances to the last alone, a sign, a transposition."""
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(12, 3, generator=generator, dtype=torch.float64).softmax(1)
    h = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    g = gradients(p, h)
    draws, chosen = torch.Generator().manual_seed(0), [int(g.norm(dim=1).argmax())]
    while len(chosen) < 8:
        nearest = torch.cdist(g, g[chosen]).square().min(1).values
        nearest[chosen] = 0
        chosen.append(int(torch.multinomial(nearest, 1, generator=draws)))
    assert select(p, h, as_labels(p, SPEC), 8) == chosen
    assert sorted(select(p, h, as_labels(p, SPEC), 99)) == [*range(12)]


def test_certain_images_and_copies_come_last() -> None:
    """Catches: choice of images without a gradient, or of the same image twice, before others; a choice without end
    where no gradient is left."""
    p = torch.tensor([[0.4, 0.3, 0.3]] * 4 + [[0.3, 0.4, 0.3], [0.3, 0.3, 0.4]] + [[1.0, 0.0, 0.0]] * 4).double()
    h = torch.ones(10, 2).double()
    chosen = select(p, h, as_labels(p, SPEC), 10)
    assert sorted(chosen) == [*range(10)]
    assert {*chosen[:4]} >= {4, 5}
    assert sum(i < 4 for i in chosen[:4]) == 1


def test_predictions_of_several_labels_count_from_one_half_on() -> None:
    p = torch.tensor([[0.2, 0.5, 0.9], [0.1, 0.4, 0.3]]).double()
    assert as_labels(p, replace(SPEC, multilabel=True)).tolist() == [[0, 1, 1], [0, 0, 0]]
    assert as_labels(p, SPEC).tolist() == [[0, 0, 1], [0, 1, 0]]


@pytest.fixture
def unlabeled(tmp_path: Path) -> Path:
    for i in range(12):
        photo(tmp_path / "unlabeled" / f"{i}.png", i)
    return tmp_path / "unlabeled"


def rows(page: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(page.with_suffix(".csv").open(encoding="utf-8")))


def test_a_command_lists_images_to_label(unlabeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches: a damaged file that ends the command, the same pixels twice, a list that is overwritten, more images
    than there are, rows of other images."""
    shutil.copy(unlabeled / "3.png", unlabeled / "again.png")
    (unlabeled / "broken.png").write_bytes(b"no image")
    run, page = untrained(tmp_path / "run").path, tmp_path / "out" / "next.html"
    assert main(["next", str(run), str(unlabeled), "--count", "5", "--out", str(page)]) == 0
    said = capsys.readouterr()
    assert "5 images of 12 to label next" in said.out
    assert "left out 1 image that could not be read, such as" in said.err
    assert "left out 1 image with the same pixels as another" in said.err
    assert "is not known: its own are not there" in said.err
    listed = rows(page)
    assert len({row["image"] for row in listed}) == 5
    assert all(row["suggested"] in ("a", "b") and 0.5 <= float(row["score"]) <= 1 for row in listed)
    predicted = {each.name: each for each in viticulture.Run(run).predict(str(unlabeled))}
    for row in listed:
        assert predicted[row["image"]].label == row["suggested"]
        assert predicted[row["image"]].probability == pytest.approx(float(row["score"]), abs=1e-4)
    assert page.read_text(encoding="utf-8").count("<img") == 5
    refused("may hold decisions", viticulture.label_next, run, [str(unlabeled)], out=str(page))
    every = tmp_path / "every.html"
    assert len(viticulture.label_next(run, [str(unlabeled)], out=str(every)).rows) == 12
    assert "--count is 50, and 12 images can be chosen: all are listed" in capsys.readouterr().err
    assert len(rows(every)) == 12


def test_images_with_labels_are_left_out(tmp_path: Path, unlabeled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By their pixels, whatever their names. Catches: held-out images, which have labels as well, in the list."""
    for i in range(16):
        photo(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", 50 + i)
    small = {"student.name": "vit_nano", "student.patch_size": 4, "images.image_size": 16, "train.epochs": 1}
    session = begin(str(tmp_path / "photos"), "default/photos", 0, str(tmp_path / "run"), False, small, "test")
    fit(session)
    session.run.unlock()
    for i in range(16):
        shutil.copy(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", unlabeled / f"copy-{i}.png")
    viticulture.label_next(tmp_path / "run", [str(unlabeled)], count=99, out=str(tmp_path / "next.html"))
    assert "left out 16 images of the run's own data" in capsys.readouterr().err
    assert {Path(row["image"]).name for row in rows(tmp_path / "next.html")} == {f"{i}.png" for i in range(12)}
    refused(
        "no image is left to label: left out 16 images",
        viticulture.label_next, tmp_path / "run", [str(tmp_path / "photos")], out=str(tmp_path / "own.html"),
    )  # fmt: skip


def test_digests_of_labeled_images_are_not_copied_for_each_image(
    tmp_path: Path, unlabeled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: time in proportion to labeled times unlabeled images."""

    class Digests(set[bytes]):
        __or__ = copy = None  # type: ignore[assignment]

    monkeypatch.setattr(label_next, "run_digests", lambda _: Digests())
    run, out = untrained(tmp_path / "run").path, str(tmp_path / "next.html")
    assert len(viticulture.label_next(run, [str(unlabeled)], out=out).rows) == 12


def test_images_removed_meanwhile_are_left_out(
    tmp_path: Path, unlabeled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches: predictions of one image under the name of another; a traceback."""
    run, chosen = untrained(tmp_path / "run").path, label_next.select

    def remove(*arguments: Any) -> list[int]:
        (unlabeled / "3.png").unlink()
        return chosen(*arguments)

    viticulture.label_next(run, [str(unlabeled)], out=str(tmp_path / "before.html"))
    monkeypatch.setattr(label_next, "select", remove)
    viticulture.label_next(run, [str(unlabeled)], out=str(tmp_path / "next.html"))
    assert "left out 1 chosen image gone meanwhile" in capsys.readouterr().err
    assert rows(tmp_path / "next.html") == [
        row for row in rows(tmp_path / "before.html") if Path(row["image"]).name != "3.png"
    ]


def test_several_labels_are_chosen_from(tmp_path: Path, unlabeled: Path) -> None:
    """Catches: a softmax over labels; one name where an image has several labels or none."""
    run = untrained(tmp_path / "run", ("a", "b", "c"), **{"method.name": "multilabel"})
    student, spec, _ = load(run.weights("last"))
    save(student, run.weights("last"), replace(spec, multilabel=True))
    viticulture.label_next(run.path, [str(unlabeled)], count=4, out=str(tmp_path / "next.html"))
    for row in rows(tmp_path / "next.html"):
        scores = [float(score) for score in row["score"].split("|") if score]
        assert len(scores) == len([name for name in row["suggested"].split("|") if name])
        assert all(score >= 0.5 for score in scores)


def test_what_cannot_be_chosen_from_is_one_line(tmp_path: Path, unlabeled: Path) -> None:
    run, out = untrained(tmp_path / "run").path, str(tmp_path / "next.html")
    (tmp_path / "empty").mkdir()

    def choose(run: Path, images: Path, **keywords: object) -> None:
        viticulture.label_next(run, [str(images)], **{"out": out, **keywords})

    refused("no images in", choose, run, tmp_path / "empty")
    refused("no file or folder", choose, run, tmp_path / "absent")
    refused("at least 1, got 0", choose, run, unlabeled, count=0)
    refused("must end in .html", choose, run, unlabeled, out=str(tmp_path / "next.csv"))
    refused("trained without labels", choose, untrained(tmp_path / "unlabeled-run", ()).path, unlabeled)
    refused("is not a run|no run", choose, tmp_path / "empty", unlabeled)
    detector = untrained_dense(tmp_path / "detector", "detection").path
    refused("name a classifier", choose, detector, unlabeled)
    for i in range(3):
        (tmp_path / "empty" / f"{i}.png").write_bytes(b"no image")
    refused("no image is left to label: .* could not be read", choose, run, tmp_path / "empty")
    student, spec, _ = load(run / "weights" / "last")
    for weights in student.parameters():
        weights.data.zero_()
    save(student, run / "weights" / "last", spec)
    refused("the same features for all 12 images", choose, run, unlabeled)
    assert not Path(out).exists()
    assert not Path(out).with_suffix(".csv").exists()


def test_a_run_on_digits_is_chosen_from(tmp_path: Path, unlabeled: Path) -> None:
    """Catches: images of other channels or sizes than those of the run's data, weights with other heads."""
    run = trained(tmp_path / "run", {"train.epochs": 1})
    assert len(viticulture.label_next(run, [str(unlabeled)], count=3, out=str(tmp_path / "n.html")).rows) == 3
