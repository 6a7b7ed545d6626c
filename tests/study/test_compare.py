# SPDX-License-Identifier: Apache-2.0
"""`viticulture compare` from the shell and from Python."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

import viticulture
from refusals import refused
from viticulture.cli import main
from viticulture.command import Parser
from viticulture.config.load import load_config
from viticulture.data.image_settings import normalization
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.study.declare import default_candidates, grid_of_recipes
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate
from viticulture.study.plan import EVAL_VIEWS
from viticulture.study.run import plan_study
from viticulture.study.study import Study
from viticulture.study.terms import ALL_IMAGES, EQUAL_EPOCHS, Terms

FAST = ["--batch-size", "8", "--images.image_size", "8"]
SHORT = ["--epochs", "1", "--schedule.warmup_epochs", "0"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three classes of 20 random pictures each."""
    root, draw = tmp_path_factory.mktemp("data") / "my photos", np.random.default_rng(0)
    for c, name in enumerate(("<b>fett & 'co'", "zwei Wörter", "a, b")):
        (root / name).mkdir(parents=True)
        for i in range(20):
            pixels = draw.integers(0, 255 // (c + 1), (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.mark.slow
def test_compare_plans_trains_extends_and_trains_the_winner(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipes = "default/digits,dhvt/digits"
    terms = ["--per-class", "3,30", "--seeds", "1", "--epochs", "1", *FAST]
    words = ["compare", str(photos), "--recipes", recipes, *terms]
    assert main([*words, "--out", "s"]) == 0
    shown = capsys.readouterr()
    assert "min per cell" in shown.err.replace("\n", " ") or "cell" in shown.err
    assert "[4/4]" in shown.err
    assert shown.err.count("note: fewer than 30 training images in 3 classes") == 1
    assert "Top-1 accuracy on" in shown.out
    assert "report: s/report.html" in shown.out
    page = (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
    assert "<b>fett" not in page
    assert "&lt;b&gt;fett &amp; &#39;co&#39;" in page
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("model.safetensors")}
    assert len(before) == 4 * 2  # best and last

    grid = (tmp_path / "s" / "study.yaml").read_text(encoding="utf-8")
    (tmp_path / "s" / "study.yaml").write_text(grid.replace("seeds:\n- 0", "seeds:\n- 0\n- 7"), encoding="utf-8")
    assert main(["compare", "resume", "s"]) == 0
    assert capsys.readouterr().err.count("seed 7") == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    found = Study(Path("s"))
    assert found.counts == (8, 8)
    assert found.conclusion.startswith("No winner on") or found.winner
    assert main(["report", "s"]) == 0

    capsys.readouterr()
    assert main(["train", str(photos), "--like", "s", "--print-config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == yaml.safe_load(found.folder.recipe_file(found.leader.candidate).read_text(encoding="utf-8"))

    recipe = json.loads((found.folder.run(found.leader.outcomes[0].cell).path / "run.json").read_text())["recipe"]
    assert main(["train", str(photos), "--like", "s", *SHORT, "--out", "run"]) == 0
    settled = viticulture.Run(Path("run")).folder.path / "recipe.yaml"
    assert ("dhvt_nano" in settled.read_text()) == (recipe == "dhvt/digits")
    assert "validate: val" in settled.read_text()
    capsys.readouterr()
    assert main(["train", str(photos), "--like", "s", "--recipe", "default/digits", "--out", "other"]) == 2
    assert "--like" in capsys.readouterr().err


def test_a_papers_table_is_trained_row_by_row(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--student.options.embed_dim", "16", "--student.options.depth", "1", "--images.image_size", "8"]
    tiny += ["--images.cache_size", "8", "--batch-size", "8", "--data.test_fraction", "0.2", "--epochs", "1"]
    tiny += ["--schedule.warmup_epochs", "0", "--augment.rand_augment", "null"]
    words = ["compare", "--table", "dhvt/table2", str(photos), "--out", str(tmp_path / "s"), *tiny]
    assert main(words) == 0
    found = Study(tmp_path / "s")
    assert [one.status for one in found.outcomes] == ["finished"] * len(found.folder.grid.candidates)
    shown = capsys.readouterr().out
    assert "published" in shown
    assert "ours −" in shown
    assert found.conclusion.startswith("dhvt/table2: ours minus published is ")


def test_python_returns_a_study_with_a_table(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Path(viticulture.__file__).parent / "recipes" / "default" / "digits.yaml"
    (tmp_path / "mine.yaml").write_text(good.read_text().replace("batch_size: 20", "batch_size: 8"))
    found = viticulture.compare(
        str(photos),
        [str(tmp_path / "mine.yaml"), "default/digits"],
        viticulture.Subsets(per_class=(4,)),
        seeds=1,
        where=viticulture.Where(out=str(tmp_path / "s")),
        overrides={"train.epochs": 1, "images.image_size": 8},
    )
    assert [row["status"] for row in found.rows] == ["finished", "failed"]
    assert "--batch-size null" in found.rows[1]["error"]
    assert found.failed == 1
    assert main(["compare", "resume", str(found.path)]) == 1, "a script must learn of what failed"
    assert list(found.table.columns) == list(found.rows[0])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(viticulture.UserError, match="pip install pandas"):
        _ = found.table


def test_mistakes_are_one_line(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here, one = str(photos), ["--recipes", "default/digits"]
    for command, words in {
        ("compare",): "data",
        ("compare", here, "--recipes", "default/digit"): "default/digits",
        ("compare", here, "--recipes", "default/digits,default/digits"): "different names",
        ("compare", str(tmp_path / "nowhere"), *one): "nowhere",
        ("compare", here, *one, "--fractions", "10"): "ten percent is 0.1",
        ("compare", here, *one, "--fractions", "a"): "fractions",
        ("compare", here, *one, "--fraction", "0.1"): "--fractions",
        ("compare", here, *one, "--per-class", "0"): "at least 1",
        ("compare", here, *one, "--seeds", "0"): "at least one seed",
        ("compare", here, *one, "--folds", "5", "--seeds", "3"): "leave one of them out",
        ("compare", here, *one, "--folds", "1"): "at least 2",
        ("compare", here, *one, "--data.folds", "3"): "use --folds",
        ("compare", here, *one, "--folds", "500"): "of every class",
        ("compare", "--table", "dhvt/table9", "--folds", "5"): "splits of its paper",
        ("compare", here, *one, "--budget", "soon"): "such as 90s, 30m, 2h or 1night",
        ("compare", here, *one, "--budget", "15core-m"): "only `train` counts the time of processors",
        ("compare", here, *one, "--equal", "time"): "budget to divide",
        ("compare", here, *one, "--equal", "epoch"): "epochs",
        ("compare", here, *one, "--epochs", "0"): "at least 1",
        ("compare", here, *one, "--workers", "2", "--slurm"): "one of",
        ("compare", here, *one, "--optim.learning_rate", "1"): "optim.lr",
        ("compare", here, *one, "--engine.devices", "2"): "one device",
        ("compare", here, *one, "--device", "cuda"): "sees no GPU",
        ("compare", "--table", "dhvt/table99"): "dhvt/table9",
        ("compare", "resume", "nowhere"): "does not exist",
        ("compare", "resume", str(photos)): "not a study folder",
        ("train", here, "--like", "nowhere"): "does not exist",
    }.items():
        assert main(list(command)) == 2, command
        shown = capsys.readouterr()
        assert words in shown.err, f"{command}: {shown.err}"
        assert "Traceback" not in shown.err
        assert not list((tmp_path / "studies").rglob("cells")), command


def test_the_default_field_fits_the_images(photos: Path) -> None:
    for data in ("digits", str(photos)):
        found = default_candidates(data)
        assert found[0].name == "plain ViT"
        assert {one.name.split()[0] for one in found} >= {"plain", "CNN", "DHVT"}
        assert not any(one.data for one in found)


def test_a_recipe_file_with_relative_weights_is_continued_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, spec = large_photos(tmp_path), DataSpec(("a", "b"), (32, 32), *normalization("imagenet", 3))
    save(create_student("resnet10t", spec), tmp_path / "net", spec)
    monkeypatch.chdir(tmp_path)
    keys = {"student.name": "resnet10t", "student.init": "net"}
    (tmp_path / "mine.yaml").write_text(load_config("default/photos", keys).to_yaml())
    grid = grid_of_recipes(photos, ("mine.yaml",), ALL_IMAGES, 1, EQUAL_EPOCHS, {})
    StudyFolder.create(tmp_path / "study", grid, "test")
    assert str(tmp_path / "net") in (tmp_path / "study/recipes/mine.yaml").read_text()


def test_a_trained_network_is_one_more_candidate(tmp_path: Path) -> None:
    """The others start from scratch, at the size that the budget chooses; it has its own size, architecture and colors.
    Recipes that are named all start from it."""
    photos, spec = large_photos(tmp_path), DataSpec(("a", "b"), (32, 32), *normalization("imagenet", 3))
    save(create_student("resnet10t", spec), tmp_path / "net", spec)
    start = {"student.init": str(tmp_path / "net"), "optim.lr": 0.1}
    grid = grid_of_recipes(photos, (), ALL_IMAGES, 1, EQUAL_EPOCHS, start)
    *scratch, trained = grid.candidates
    assert tuple(scratch) == default_candidates(photos)
    assert (trained.name, trained.recipe) == ("pre-trained", "finetune/photos")
    assert trained.overrides["student.name"] == "resnet10t"
    assert trained.overrides["images.image_size"] == 32
    assert trained.overrides["student.init"] == str(tmp_path / "net")
    assert "student.init" not in grid.conditions
    assert grid.conditions["optim.lr"] == 0.1
    named = grid_of_recipes(photos, ("default/photos",), ALL_IMAGES, 1, EQUAL_EPOCHS, start)
    assert [each.recipe for each in named.candidates] == ["default/photos"]
    assert named.conditions["student.init"] == str(tmp_path / "net")
    tuned = grid_of_recipes(photos, ("finetune/photos", "probe/photos"), ALL_IMAGES, 1, EQUAL_EPOCHS, start)
    assert [each.overrides["student.name"] for each in tuned.candidates] == ["resnet10t"] * 2
    candidates = (Candidate("scratch", "default/photos", {"student.name": "vit_nano"}), trained)
    grid = replace(grid, candidates=candidates, terms=Terms(budget="10d"), conditions={"train.batch_size": 8})
    planned = StudyFolder.create(tmp_path / "study", grid, "a test")
    plan = plan_study(planned, 1, print)
    assert plan.fixed_keys == {"pre-trained": ["images.image_size"]}
    assert [plan.image_size(each) for each in candidates] == [{"images.image_size": 96}, {}]


def test_a_budget_that_one_candidate_exceeds_is_refused_before_others_are_measured(tmp_path: Path) -> None:
    first = Candidate("first", "default/photos", {"student.name": "vit_nano"})
    second = Candidate("second", "default/photos", {"data.unlabeled": "missing"})
    terms = {"images.image_size": 32, "train.batch_size": 8}
    grid = replace(
        grid_of_recipes(large_photos(tmp_path), (), ALL_IMAGES, 3, EQUAL_EPOCHS, terms),
        candidates=(first, second),
        terms=Terms(budget="1s"),
    )
    logged: list[str] = []
    refused(
        "1 epoch of each takes more than 1 min",
        plan_study,
        StudyFolder.create(tmp_path / "s", grid, ""),
        1,
        logged.append,
    )
    assert not logged, "that the second cannot be measured"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], {"images.image_size": 96}),
        (["--image-size", "32"], {}),
        (["--images.eval_views", "one"], {"images.image_size": 96}),
    ],
)
def test_a_long_budget_uses_whole_images_and_keeps_named_values(
    tmp_path: Path, options: list[str], shown: dict[str, int]
) -> None:
    plan = long_planned(tmp_path, options).plan
    assert plan is not None
    assert plan.image_keys == shown


def large_photos(folder: Path) -> str:
    """Write two classes of ten random pictures, 96 px high."""
    draw = np.random.default_rng(0)
    for name in "ab":
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(10):
            pixels = draw.integers(0, 256, (96, 100, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{i}.png")
    return str(folder / "photos")


def long_planned(folder: Path, options: list[str]) -> Study:
    """Plan a study of photographs with a budget of days; nothing is trained."""
    words = ["compare", large_photos(folder), "--recipes", "default/photos", "--student", "vit_nano", "--slurm"]
    words += ["--budget", "10d", "--seeds", "1", "--batch-size", "8", "--out", str(folder / "s"), *options]
    assert main(words) == 0
    return Study(folder / "s")


def test_a_candidate_added_to_a_budgets_study_keeps_its_recipes_size_and_views(tmp_path: Path) -> None:
    study = long_planned(tmp_path, []).folder
    study.update(plan={**study.metadata["plan"], "image_keys": {"images.image_size": 96, "images.eval_views": "one"}})
    recipe = study.recipe_file(study.grid.baseline).read_text()
    mine = recipe.replace("image_size: null", "image_size: 32").replace("eval_views: best", "eval_views: four")
    assert "image_size: 32" in mine
    assert "eval_views: four" in mine
    (tmp_path / "mine.yaml").write_text(mine)
    declared = yaml.safe_load((study.path / "study.yaml").read_text())
    declared["candidates"] += [
        {"name": "open", "recipe": "default/photos", "overrides": {"optim.lr": 1e-3}},
        {"name": "beside", "recipe": "default/photos", "overrides": {"images.image_size": 48, EVAL_VIEWS: "best"}},
        {"name": "within", "recipe": str(tmp_path / "mine.yaml")},
    ]
    (study.path / "study.yaml").write_text(yaml.safe_dump(declared))
    assert main(["compare", "resume", str(study.path), "--slurm"]) == 0
    again = Study(study.path)
    plan = again.plan
    assert plan is not None
    shown = {cell.candidate.name: plan.overrides(again.folder.grid, cell) for cell in again.folder.grid.cells()}
    sizes = {name: keys.get("images.image_size") for name, keys in shown.items()}
    assert sizes == {study.grid.baseline.name: 96, "open": 96, "beside": None, "within": None}
    views = {name: keys.get(EVAL_VIEWS) for name, keys in shown.items()}
    assert views == {study.grid.baseline.name: "one", "open": "one", "beside": None, "within": None}


def test_a_group_of_options_is_read_from_its_dataclass() -> None:
    parser = Parser("compare", viticulture.api.compare)
    found = parser.command(["x", "--per-class", "5,10", "--budget", "2h", "--halving", "--recipes", "a, b"]).keywords
    assert found["subsets"] == viticulture.Subsets(per_class=(5, 10))
    assert found["terms"] == viticulture.Terms("2h", "epochs", True)
    assert found["recipes"] == ("a", "b")
    assert found["seeds"] is None, "three, or one a fold"
    assert parser.command(["x", "--seeds", "4", "--folds", "5"]).keywords["seeds"] == 4
    assert "of every class's training images, such as" in " ".join(parser.format_help().split())
