# SPDX-License-Identifier: Apache-2.0
"""Files of a run, a study or a budget from untrusted sources run no code, and damage is reported."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import viticulture
from made_results import classified, save_classes
from made_study import study as made_study
from refusals import refused
from untrained import photo, untrained
from viticulture import api, user_code
from viticulture.budget.choices import Kind
from viticulture.budget.plan import BudgetPlan, Stage, read_plan
from viticulture.config.load import load_config, read
from viticulture.config.resolve import resolve
from viticulture.deploy.hub.push import contents
from viticulture.errors import UserError
from viticulture.evaluation.outputs import Predictions
from viticulture.report.run_page import page_of
from viticulture.report.stages import plan_table
from viticulture.study.folder import StudyFolder
from viticulture.study.halving import write_table
from viticulture.study.outcomes import Outcomes
from viticulture.study.step_times import StepTimes
from viticulture.study.study import Study
from viticulture.tasks.classification_metrics import evaluate_predictions
from viticulture.text import read_yaml
from viticulture.training.metrics import cut
from viticulture.training.run_folder import RunFolder

CANARY = "canary_of_a_stranger"
SPEC = {"class_path": f"{CANARY}.Thing", "init_args": {"x": 1}}
VALUES: tuple[Any, ...] = (
    SPEC,
    [SPEC],
    {"x": SPEC},
    json.dumps(SPEC),
    f"{CANARY}.Thing",
    {"__class__": f"{CANARY}.Thing"},
    {"__path__": f"{CANARY}.py", **SPEC},
    {"__default_config__": f"{CANARY}.yaml"},
    {"class": f"{CANARY}.Thing"},
    f"!!python/object/apply:{CANARY}.Thing []",
    f"python:{CANARY}.Thing",
    f"{CANARY}.yaml",
)
"""What makes some reader of YAML or JSON somewhere import a module."""
Place = tuple[str | int, ...]


@pytest.fixture(autouse=True)
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a module in the current folder and on Python's path that must not be imported, and a file that names it."""
    (tmp_path / f"{CANARY}.py").write_text("class Thing:\n    def __init__(self, *a, **k): pass\n")
    (tmp_path / f"{CANARY}.yaml").write_text(yaml.safe_dump(SPEC))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITICULTURE_CACHE", str(tmp_path / "cache"))
    yield tmp_path
    imported = sys.modules.pop(CANARY, None)
    assert imported is None


def read_by_all(run: Path, image: Path) -> None:
    """Read a run by everything that reads runs; only a `UserError` of one line may be raised."""
    opened = viticulture.Run(run)
    readers: tuple[Callable[[], object], ...] = (
        lambda: api.predict(str(run), [str(image)]),
        lambda: api.runs(str(run.parent)),
        lambda: api.report(str(run)),
        lambda: api.evaluate(str(run)),
        lambda: api.resume(str(run), progress=False),
        lambda: opened.metrics,
        lambda: opened.predictions,
        lambda: opened.history,
        lambda: opened.recipe,
        lambda: opened._repr_html_(),
    )
    for reader in readers:
        quietly(reader)
    assert CANARY not in sys.modules


def quietly(reader: Callable[[], object]) -> None:
    """Call it; a mistake must be a `UserError` of one line."""
    said = ""
    try:
        reader()
    except UserError as error:
        said = str(error)
    assert "\n" not in said


def leaves(content: Any, place: Place = ()) -> Iterator[Place]:
    """Return the place of every leaf value in JSON; of a long list the first and the last."""
    if isinstance(content, dict) and content:
        for key, value in content.items():
            yield from leaves(value, (*place, key))
    elif isinstance(content, list) and content:
        for number in {0, len(content) - 1}:
            yield from leaves(content[number], (*place, number))
    else:
        yield place


def changed(content: Any, place: Place, value: Any) -> Any:
    """Return a copy of JSON with one value replaced."""
    if not place:
        return value
    copied: Any = dict(content) if isinstance(content, dict) else list(content)
    inner = copied.get(place[0]) if isinstance(copied, dict) else copied[place[0]]
    copied[place[0]] = changed({} if inner is None else inner, place[1:], value)
    return copied


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a finished run of random weights with results and logs; its images are gone."""
    import torch

    run = untrained(tmp_path_factory.mktemp("runs") / "run")
    facts = run.read("run.json")
    config = resolve("x", read_yaml(run.text("recipe.yaml"), "x"))
    run.update(
        settings=config.values, seconds=2.0, steps=3, batch_size=4, views=1, teachers=[], length=1,
        hardware={"cpu": "a CPU", "cores": 2, "gpus": [], "threads": 1},
        data={**facts["data"], "images": {"train": 9, "test": 20}, "skipped": {}, "portable": "",
              "contents": {"test": "x"}},
    )  # fmt: skip
    labels = torch.arange(20) % 2
    said = torch.eye(2)[labels.where(torch.arange(20) > 3, 1 - labels)] * 0.8 + 0.1
    predictions = Predictions(said, labels, [str(i) for i in range(20)])
    result = evaluate_predictions(predictions, ("a", "b"))
    run.write("evaluation.json", {**classified("last/test", {"last/test": result}).to_dict(), "checksums": {}})
    save_classes(run, "last/test", {"last/test": predictions})
    accuracy = {"always the commonest class": 0.5}
    run.write("references.json", {"split": "test", "accuracy": accuracy, "images": {"train": [5, 4], "test": [10, 10]}})
    run.write("split.json", {"names": {"train": ["x"], "test": [str(i) for i in range(20)]}})
    run.write("metrics.csv", "step,epoch,name,value\n0,0,train/loss,1.5\n0,0,val/accuracy,0.5\n")
    return run.path


OTHERS: tuple[Any, ...] = (None, "many", -3, 2.5, 10**400, float("nan"), float("inf"), True, [], [1, "x"], {}, {"x": 1})
"""What stands in place of a value that is damaged."""


@pytest.mark.slow
@pytest.mark.parametrize("file", ["run.json", "evaluation.json", "references.json", "split.json"])
def test_a_value_of_another_type_is_one_line_anywhere(file: str, measured: Path, tmp_path: Path) -> None:
    run, image = tmp_path / "runs" / "run", photo(tmp_path / "a.png", 1)
    shutil.copytree(measured, run)
    shutil.copytree(measured, tmp_path / "runs" / "other")
    content = json.loads((run / file).read_text())
    for number, place in enumerate(leaves(content)):
        for value in OTHERS:
            (run / file).write_text(json.dumps(changed(content, place, value)))
            rows = api.runs(str(run.parent)).rows
            assert [row[0] for row in rows].count("other") == 1
            assert next(row for row in rows if row[0] == "other")[5] == 0.8
            for reader in (read_results_of, lambda run: report(run)):
                quietly(partial(reader, run))
        (run / file).write_text(json.dumps(changed(content, place, OTHERS[number % len(OTHERS)])))
        read_by_all(run, image)


def test_an_invalid_metric_is_one_line(measured: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    shutil.copytree(measured, run)
    lines = (run / "metrics.csv").read_text().splitlines()
    for column in range(4):
        for value in ("", "many", "-1", "nan", "inf", "1e400", "[]", "9" * 5000):
            cells = lines[1].split(",")
            cells[column] = value
            (run / "metrics.csv").write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
            for reader in (
                lambda: api.report(str(run)),
                lambda: viticulture.Run(run).history,
                partial(cut, run / "metrics.csv", 3),
            ):
                quietly(reader)
    (run / "metrics.csv").write_text("\n".join(lines))
    assert len(viticulture.Run(run).history) > 0


def read_results_of(run: Path) -> None:
    """Read results as Python does."""
    opened = viticulture.Run(run)
    _ = opened.metrics, opened.predictions, opened.accuracy, opened.confusion, opened.classes, opened._repr_html_()


def report(run: Path) -> None:
    """Return the content of its page, not drawn."""
    page_of(RunFolder.open(run))


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", ["study.json", "study.yaml", "failures/CELL.json", "cells/CELL/run.json", "cells/CELL/evaluation.json"]
)
def test_a_value_of_another_type_in_a_study_is_one_line(file: str, tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", ["one", "two"], (5,), 2)
    first, second, *_ = study.folder.grid.cells()
    shutil.rmtree(study.folder.run(second).path)
    study.folder.record_failure(second, "a full disk")
    path = study.path / file.replace("CELL", first.name if "cells" in file else second.name)
    content = yaml.safe_load(path.read_text())
    for place in leaves(content):
        for value in (*OTHERS, "../../elsewhere"):
            told = changed(content, place, value)
            path.write_text(json.dumps(told) if path.suffix == ".json" else yaml.safe_dump(told))
            quietly(lambda: StudyFolder.open(study.path).extend())
            quietly(lambda: write_table((again := Study(study.path)).folder, Outcomes(again.folder)))
            quietly(lambda: (again := Study(study.path), again.plan, again.conclusion, again.winner))
        if "cells" not in file:
            quietly(lambda: api.report(str(study.path)))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_a_value_of_another_type_in_a_plan_is_one_line(tmp_path: Path) -> None:
    run, recipe = tmp_path / "runs" / "run", load_config("default/digits")
    run.mkdir(parents=True)
    pace = StepTimes(0.1, 3, 0.01, 10, 10, 0.1)
    stages = [Stage(name, kind, recipe.name, recipe.values, pace, 3, 9.0) for name, kind in KINDS]
    BudgetPlan("60s", "digits", None, 0, "viticulture train", 1.0, tuple(stages)).write(run)
    content = json.loads((run / "budget.json").read_text())
    values = (*OTHERS, "../../elsewhere", f"python:{CANARY}.Thing")
    for number, place in enumerate(leaves(content)):
        for value in values if "values" not in place else [values[number % len(values)]]:
            (run / "budget.json").write_text(json.dumps(changed(content, place, value)))
            api.runs(str(run.parent))
            quietly(lambda: plan_table(plan := read_plan(run)) and [plan.place(run, i) for i in range(2)])
            quietly(lambda: [stage.config for stage in read_plan(run).stages])
            assert not (tmp_path / "elsewhere").exists()


KINDS: tuple[tuple[str, Kind], ...] = (("1-mae", "mae"), ("2-student", "student"))
KEYS = (
    *("student.name", "student.options", "student.options.act_layer", "method.name", "method.x", "guides.g"),
    *("guides.g.class", "guides.logits.teacher", "augment.a.class", "images.image_size", "data.class_weights"),
)


def test_no_recipe_of_a_run_imports_code(measured: Path, tmp_path: Path) -> None:
    run, image = tmp_path / "runs" / "run", photo(tmp_path / "a.png", 1)
    shutil.copytree(measured, run)
    recipe, facts = yaml.safe_load((run / "recipe.yaml").read_text()), json.loads((run / "run.json").read_text())
    for key in KEYS:
        for value in VALUES:
            told = changed(recipe, tuple(key.split(".")), value)
            (run / "recipe.yaml").write_text(yaml.safe_dump(told))
            (run / "run.json").write_text(json.dumps({**facts, "settings": told}))
            quietly(lambda: api.predict(str(run), [str(image)]))
            quietly(lambda: api.resume(str(run), progress=False))
            quietly(lambda: api.probe(str(run)))
            quietly(lambda: contents(RunFolder(run), "somebody/vines"))
            assert CANARY not in sys.modules, (key, value)
    (run / "run.json").write_text(json.dumps(facts))
    for tag in (f"!!python/name:{CANARY}.Thing ''", f"!!python/object/new:{CANARY}.Thing {{}}"):
        (run / "recipe.yaml").write_text(f"student: {tag}\n")
        read_by_all(run, image)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["run.json", "evaluation.json", "references.json", "split.json", "config.json"])
def test_no_other_file_of_a_run_imports_code(file: str, measured: Path, tmp_path: Path) -> None:
    run, image = tmp_path / "runs" / "run", photo(tmp_path / "a.png", 1)
    shutil.copytree(measured, run)
    path = run / "weights" / "last" / file if file == "config.json" else run / file
    content = json.loads(path.read_text())
    more = [("model_args", "act_layer"), ("model_args", "norm_layer"), ("dense",)] if file == "config.json" else []
    for number, place in enumerate([*more, *(place for place in leaves(content) if place[0] != "settings")]):
        for value in VALUES if place in more or place[0] == "data" else [VALUES[number % len(VALUES)]]:
            path.write_text(json.dumps(changed(content, place, value)))
            quietly(lambda: api.predict(str(run), [str(image)]))
            quietly(lambda: api.evaluate(str(run)))
            quietly(lambda: contents(RunFolder(run), "somebody/vines"))
            assert CANARY not in sys.modules, (place, value)


@pytest.mark.slow
def test_no_file_of_a_study_a_budget_or_a_table_imports_code(tmp_path: Path) -> None:
    made_study(tmp_path / "study", ["one", "two"], (5,), 2)
    for file in ("study.yaml", "study.json", "recipes/one.yaml"):
        whole = (tmp_path / "study" / file).read_text()
        content = yaml.safe_load(whole)
        for number, place in enumerate(leaves(content)):
            told = changed(content, place, VALUES[number % len(VALUES)])
            (tmp_path / "study" / file).write_text(json.dumps(told) if file.endswith("json") else yaml.safe_dump(told))
            quietly(lambda: api.report(str(tmp_path / "study")))
            with suppress(UserError):
                folder = StudyFolder.open(tmp_path / "study")
                quietly(folder.extend)
                for candidate in folder.grid.candidates:
                    quietly(partial(folder.recipe, candidate))
        (tmp_path / "study" / file).write_text(whole)
    own = {"name": "evil", "recipe": "default/digits", "overrides": {"student.name": f"{CANARY}.Thing"}}
    content = yaml.safe_load((tmp_path / "study" / "study.yaml").read_text())
    (tmp_path / "study" / "study.yaml").write_text(yaml.safe_dump({**content, "candidates": [own]}))
    refused(r"names code of its author, canary_of_a_stranger.Thing", api.compare_resume, str(tmp_path / "study"))
    assert CANARY not in sys.modules


@pytest.mark.parametrize(
    "value", [SPEC, [SPEC], json.dumps(SPEC), {"init": SPEC}, f"{CANARY}.yaml", {"__path__": f"{CANARY}.yaml"}]
)
@pytest.mark.parametrize(
    "key",
    [
        "student.options",
        "student.options.x",
        "method.local_crops",
        "optim.betas",
        "images.image_size",
        "data.class_weights",
        "train.epochs",
        "method.temperature",
    ],
)
def test_a_value_of_a_recipe_is_never_taken_for_a_class(key: str, value: Any) -> None:
    with suppress(UserError):
        told = resolve("x", read("default/digits"), {"method.name": "dino", key: value}).values
        section, *more = key.split(".")
        for part in (section, *more):
            told = told[part]
        assert told == value
    assert CANARY not in sys.modules


def test_code_used_by_a_training_here_is_trusted(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(measured, run)
    plugins = Path(__file__).parent / "plugins"
    monkeypatch.syspath_prepend(plugins)
    shift = {"class": "my_vineyard.Shift", "most": 8}
    recipe = {**yaml.safe_load((run / "recipe.yaml").read_text()), "augment": {"brighter": shift}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "settings": recipe}))
    monkeypatch.setattr(user_code, "NAMED", set())
    with pytest.raises(UserError, match=r"names code .*my_vineyard.Shift.*: VITICULTURE_TRUST=my_vineyard$"):
        viticulture.Run(run).recipe  # noqa: B018
    monkeypatch.setenv(user_code.TRUST, "my_vine,my_vineyard.Other")
    with pytest.raises(UserError, match="names code"):
        viticulture.Run(run).recipe  # noqa: B018
    monkeypatch.setenv(user_code.TRUST, "my_vineyard")
    assert viticulture.Run(run).recipe["augment"]["brighter"] == shift
    monkeypatch.delenv(user_code.TRUST)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "code.txt").write_text("my_vineyard.Shift\nmy_other.Guide")
    assert viticulture.Run(run).recipe["augment"]["brighter"] == shift
    api.cache(clear=True)
    assert RunFolder(run).path.exists()
    assert (tmp_path / "cache" / "code.txt").exists()
