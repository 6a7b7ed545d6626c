# SPDX-License-Identifier: Apache-2.0
"""A run's page holds its results, loads nothing from a network, and escapes every name."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made_results import classified
from untrained import untrained
from viticulture.analysis.galleries import Gallery
from viticulture.evaluation.outputs import Predictions
from viticulture.models.weights.files import load, save
from viticulture.report.html import Section, fill, html_table
from viticulture.report.page import Costs, RunPage, render
from viticulture.report.run_page import page_of
from viticulture.report.svg import Series, row_chart
from viticulture.table import Column, Table, duration, scaled
from viticulture.tasks.classification_metrics import ClassificationResult, WithoutCopies, evaluate_predictions
from viticulture.tasks.classification_page import classification_page
from viticulture.tasks.figures import TaskPage

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> \"' 👩‍🔬 ü \udcff </style> {curly}"
VOID = {"meta", "img", "input", "br", "link"}
OPTIONAL = {"td", "tr", "th", "tbody", "thead"}  # HTML lets these close themselves


class Reader(HTMLParser):
    """Collects every tag with its attributes, the texts, and whether tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words, self.open = "", []  # type: str, list[str]
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in OPTIONAL:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def evaluation(classes: list[str], N: int, seed: int = 0) -> ClassificationResult:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(classes), (N,), generator=generator)
    logits = torch.randn(N, len(classes), generator=generator)
    logits[torch.arange(N), labels] += 2
    return evaluate_predictions(Predictions(logits.softmax(-1), labels, [""] * N), classes)


def contents(found: ClassificationResult, references: Mapping[str, float] | None = None, **more: Any) -> TaskPage:
    """Return the content of a result's page."""
    return classification_page(classified("best/test", {"best/test": found}), references or {}, **more)


def whole(classes: list[str], words: str = "plain") -> RunPage:
    """Build a page with something in every place, each text containing `words`."""
    pixels = np.zeros((80, 60, 3), np.uint8)
    found = evaluation(classes, 40)
    return RunPage(
        title=words,
        sentence=words,
        task=classification_page(
            classified("best/test", {"best/test": found, f"{words}/{words}": evaluation(classes, 40, seed=1)}),
            {words: 0.25},
            mistakes=[Gallery(words, [([pixels], (words, words))], words)],
        ),
        costs=Costs(5_717_416, 1_258_000_000, 1830.4, 8042),
        curves={
            "train/loss": [(0.5, 3.0), (1, 2.0)],
            f"train/{words}": [(1, 0.5)],
            "val/accuracy": [(1, 0.4)],
            words: [(1, 1.0)],
        },
        examples=[Gallery("", [([pixels], (words,))])],
        warnings=[words],
        recipe=f"student:\n  name: {words}",
        reproduce={words: words},
        sections=[Section(words, row_chart(words, [Series(words, 0, [(1.0, 0)])], words))],
    )


def test_names_are_escaped_everywhere() -> None:
    page = render(whole([EVIL, "b", "c"], EVIL))
    page.encode("utf-8")
    read = Reader(page)
    tags = [tag for tag, _ in read.tags]
    assert tags.count("script") == 1
    assert read.open == []
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert not [a for tag, a in read.tags if tag == "img" and not (a["src"] or "").startswith("data:")]
    assert read.words.count("<script>alert(1)</script>") >= 12


def test_the_page_loads_nothing() -> None:
    """The policy names the one script by its digest."""
    page = render(whole(["a", "b", "c"]))
    for tag, attributes in Reader(page).tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert style
    assert script
    assert not re.search(r"url\(|@import|@font-face", style[1])
    assert "http" not in script[1]
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_the_headline_is_the_result_that_counts() -> None:
    page = whole(["a", "b", "c"])
    words, found = Reader(render(page)).words, evaluation(["a", "b", "c"], 40)
    low, high = found.top1_interval
    for piece in (
        f"{100 * found.top1:.1f} %",
        f"{100 * low:.1f}–{100 * high:.1f} %",
        "test, best weights",
        "5.72 M",
        "1.26 G",
        "1,830",
        "2 h 14 min",
    ):
        assert piece in words
    cells = set(re.findall(r"([abc]) → ([abc])\n(\d+) of", words))
    names = [score.name for score in found.per_class]
    assert cells == {(names[r], names[c], str(found.confusion[r, c])) for r, c in np.argwhere(found.confusion)}


def test_a_calibration_curve_has_more_than_one_dot() -> None:
    for images, words in ((4, "too few for a curve"), (40, "Each dot represents at least 10 images.")):
        page = render(RunPage("t", "s", task=contents(evaluation(["a", "b"], images))))
        assert words in page
        assert ("perfect calibration</" in page) == (images == 40)


def test_only_very_long_tables_scroll() -> None:
    for rows, inside in ((24, False), (1000, True)):
        table = Table("t", [Column("run")], [[str(row)] for row in range(rows)])
        assert ("tall" in html_table(table)) == inside


def test_terms_have_explanations_and_stay_escaped() -> None:
    assert str(fill("figure.html", title="NLL & <b>", note="NLLs", kind="")).count("<abbr") == 1
    assert "</abbr> &amp; &lt;b&gt;" in fill("figure.html", title="NLL & <b>", note="", kind="")


def test_a_curve_of_one_view_is_labeled() -> None:
    curves = {"val/accuracy": [(1.0, 0.5), (2.0, 0.7)]}
    pages = [render(RunPage("t", "s", curves=curves, costs=Costs(views=views))) for views in (1, 6)]
    assert ["the results above with 6" in page for page in pages] == [False, True]


def test_sections_are_in_order() -> None:
    titles = re.findall(r"<h2[^>]*>([^<]*)", render(whole(["a", "b", "c"])))
    assert titles == [
        "Results",
        "Learning curves",
        "Confusion",
        "Classes",
        "Most confident mistakes",
        "plain",
        "Images of each class",
        "Recipe",
        "How to reproduce it",
    ]


def test_a_folded_section_opens_where_its_link_leads() -> None:
    """Browsers open `details` for a fragment inside. Fails if the link's target is the title, which stays in sight."""
    page = render(whole(["a", "b", "c"]))
    number = re.search(r'href="#part-(\d+)">How to reproduce it<', page)
    assert number
    folded = f'<details class="folded"><summary><h2>How to reproduce it</h2></summary><div id="part-{number[1]}">'
    assert page.count(folded) == 1


def test_missing_results_are_left_out() -> None:
    page = render(RunPage("runs/a", "Digits."))
    assert "not evaluated yet" in page
    assert "<h2" not in page
    assert "None" not in page
    assert "nan" not in Reader(page).words.split()


def test_charts_group_splits_of_one_loss() -> None:
    curves = {
        "lr": [(1, 0.1)],
        "train/loss": [(1, 2.0)],
        "val/loss": [(1, 3.0)],
        "train/attention_link": [(1, 0.5)],
        "val/accuracy": [(1, 0.4)],
        "train/accuracy": [(1, 0.9)],
    }
    page = render(RunPage("t", "s", curves=curves))
    captions = re.findall(r'<figure(?: class="linear")?><figcaption>([^<]*)', page)
    assert captions == ["Accuracy, %", "Loss, all terms", "Loss term: attention_link", "Learning rate"]
    assert page.count('class="log"') == 2
    assert 'data-points="[[1.0,40.0]]"' in page
    loss = page[page.index("Loss, all terms") :]
    assert re.findall(r'data-name="([^"]*)"', loss)[:2] == ["train", "validation"]


def test_the_agents_accuracy_shares_the_students_chart() -> None:
    curves = {
        "test/accuracy": [(1.0, 0.5), (2.0, 0.7)],
        "test/bootstrap_agent_accuracy": [(1.0, 0.6), (2.0, 0.8)],
        "train/bootstrap_gradient_cosine": [(1.0, 0.1), (2.0, -0.2)],
    }
    page = render(RunPage("t", "s", curves=curves))
    assert page.count("<figcaption>Accuracy, %") == 1
    looks = dict(reversed(line) for line in re.findall(r'class="line (s\d)" data-name="([^"]*)"', page))
    assert {"test", "test, bootstrap agent"} <= looks.keys()
    assert looks["test"] != looks["test, bootstrap agent"]
    assert "Loss term" not in page


def test_metrics_of_guides_are_drawn_without_the_students_accuracy() -> None:
    curves = {
        "train/loss": [(1.0, 2.0)],
        "val/loss": [(1.0, 3.0)],
        "val/bootstrap_agent_accuracy": [(1.0, 0.6)],
        "val/co_advise_wide net_accuracy": [(1.0, 0.4)],
    }
    page = render(RunPage("t", "s", curves=curves))
    chart = page[page.index("<figcaption>Accuracy, %") :]
    assert re.findall(r'data-name="([^"]*)"', chart)[:2] == [
        "validation, bootstrap agent",
        "validation, co advise wide net",
    ]
    assert "in training, last logged" in page


def test_the_page_begins_with_the_result_and_its_baselines() -> None:
    found = evaluation(["a", "b", "c"], 40)
    low, high = found.top1_interval
    references = {"always the commonest class": 0.4, "nearest neighbor on pixels": 0.55}
    curves = {"val/accuracy": [(1, 0.4), (2, 0.6), (3, 0.6)]}
    page = render(RunPage("t", "s", task=contents(found, references), curves=curves, best_epoch=3))
    assert (
        f"It classifies {100 * found.top1:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f}) of 40 test images "
        "correctly; nearest neighbor on pixels 55.0 %, always the commonest class 40.0 %."
    ) in page
    assert page.index("It classifies") < page.index("Parameters")
    chart = page[page.index("<figcaption>Accuracy, %") :]
    chart = chart[: chart.index("</figure>")]
    assert chart.count('class="level"') == 3
    assert re.findall(r'<text[^>]*class="[^"]*halo[^"]*">([^<]*)', chart) == [
        "nearest neighbor on pixels",
        "always the commonest class",
    ]
    assert 'class="middle">best</text>' in chart
    assert "refresh" not in page


def test_the_headline_names_accuracy_without_near_duplicates() -> None:
    found = evaluation(["a", "b"], 40)
    for rest, words in (
        (
            WithoutCopies(1, 0.75, (0.5, 0.875)),
            "1 of 40 test images has near-duplicates among the training images; without",
        ),
        (
            WithoutCopies(40, None, None),
            "40 of 40 test images have near-duplicates among the training images; no others",
        ),
    ):
        answered = replace(found, without_copies=rest)
        page = render(RunPage("t", "s", task=contents(answered)))
        assert words in page[: page.index("Parameters")]
        assert "without near-duplicates" in page
        assert ClassificationResult.from_dict(json.loads(json.dumps(answered.to_dict()))).without_copies == rest


def test_epoch_means_replace_single_batches() -> None:
    curves = {
        "train/loss": [(0.5, 9.0), (1.0, 8.0)],
        "train/label": [(0.5, 9.0), (1.0, 8.0)],
        "train/loss_epoch": [(1.0, 3.0), (2.0, 2.0)],
        "train/label_epoch": [(1.0, 3.0), (2.0, 2.0)],
        "val/loss": [(1.0, 5.0), (2.0, 5.0)],
    }
    page = render(RunPage("t", "s", curves=curves, best_epoch=2))
    assert "Loss term" not in page
    assert re.findall(r'data-name="train" data-points="([^"]*)"', page) == 2 * ["[[1.0,3.0],[2.0,2.0]]"]
    assert "augmented" in page
    (moment, *_) = re.findall(r'class="level" d="M([\d.]+) ', page)
    (last, *_) = re.findall(r'class="curve" d="M[\d.]+ [\d.]+L([\d.]+) ', page)
    assert moment == last
    two_terms = render(RunPage("t", "s", curves={**curves, "train/label_epoch": [(1.0, 1.0), (2.0, 1.0)]}))
    assert "Loss term: label" in two_terms


def test_the_saved_best_epoch_is_marked(tmp_path: Path) -> None:
    curves = {"val/accuracy": [(1.0, 0.3), (2.0, 0.7), (3.0, 0.6), (4.0, 0.4)]}
    page = render(RunPage("t", "s", curves=curves, best_epoch=3))
    (moment,) = re.findall(r'class="level" d="M([\d.]+) ', page)
    ((start, rest),) = re.findall(r'class="curve" d="M([\d.]+) ([\d.]+L[^"]*)"', page)
    places = [start, *re.findall(r"L([\d.]+) ", rest)]
    assert moment == places[2]
    run = untrained(tmp_path / "run")
    assert page_of(run).best_epoch is None
    student, data_spec, _ = load(run.weights("last"))
    save(student, run.weights("best"), data_spec, {"epoch": 7})
    assert page_of(run).best_epoch == 7


def test_segmentation_metrics_are_percent() -> None:
    curves = {"val/accuracy": [(1.0, 0.9), (2.0, 0.5)], "val/iou": [(1.0, 0.25), (2.0, 0.5)]}
    page = render(RunPage("t", "s", curves=curves))
    assert page.count("<figcaption>Correct pixels, %") == page.count("mIoU</abbr>, mean over images, %") == 1
    assert "[[1.0,25.0],[2.0,50.0]]" in page
    assert "Accuracy" not in page


def test_classes_have_their_number_of_training_images() -> None:
    page = render(RunPage("t", "s", task=contents(evaluation(["a", "b"], 20), trained_on=(17, 3))))
    table = page[page.index("Per class") :]
    assert re.findall(r"<td>([ab])\s*<td[^>]*>(\d+)", table) == [("a", "17"), ("b", "3")]


@pytest.mark.parametrize("classes", [2, 10, 60, 200, 300])
def test_every_number_of_classes_has_a_page(classes: int) -> None:
    names = [f"class {i}" for i in range(classes)]
    page = render(RunPage("t", "s", task=contents(evaluation(names, 300))))
    assert ("Confusion matrix" in page) == (classes <= 250)
    assert ("data-heat=" in page) == (40 < classes <= 250)
    assert ("Most confused" in page) == (classes > 2)
    assert page.count("<tr>") >= classes
    assert len(page) < 1_000_000


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "n/a"),
        (0, "0"),
        (0.43, "0.43"),
        (7, "7"),
        (9_999, "9,999"),
        (12_345, "12.3 k"),
        (5_717_416, "5.72 M"),
        (1.258e9, "1.26 G"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(value: float | None, words: str) -> None:
    assert scaled(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "n/a"), (7.4, "7 s"), (59.7, "1 min"), (61, "1 min"), (3599, "1 h 00 min"), (8042, "2 h 14 min")],
)
def test_times_are_rounded_to_what_matters(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_runs_the_page_alone(tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    path = tmp_path / "report.html"
    path.write_text(render(whole([evil, "b", "c"], "fine")), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(["chromium", *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True)
    assert "<title>fine</title>" in done.stdout
    assert '<div id="tip">' in done.stdout
