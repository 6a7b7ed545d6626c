# SPDX-License-Identifier: Apache-2.0
"""The verbs, for Python and the shell alike: each composes the layers below and returns plain objects.

Imports that take seconds (torch, timm, lightning) live inside the verbs, so that `--help` answers at once.
"""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .study.terms import ALL_IMAGES, EQUAL_EPOCHS, HERE, OWN_LENGTHS, Amounts, Terms, Where

if TYPE_CHECKING:
    from torch import nn

    from .data.inspect import Inspection
    from .evaluation.accuracy import Evaluation
    from .evaluation.predict import Prediction
    from .report.sheet import Sheet
    from .study.folder import StudyDir
    from .study.grid import Grid
    from .study.study import Study
    from .training.rundir import RunDir
    from .training.session import Session


@dataclass(frozen=True)
class Run:
    """A training on disk, finished or not.

    Args:
        path: its folder.
    """

    path: Path

    @property
    def folder(self) -> "RunDir":
        """The folder's files."""
        from .training.rundir import RunDir

        return RunDir.open(self.path)

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json says: versions, seed, data, student, status, hardware."""
        return self.folder.read("run.json")

    @property
    def evaluations(self) -> "dict[str, Evaluation]":
        """Results by weights and split, such as `best/test`; the one that counts comes first."""
        from .evaluation.accuracy import Evaluation

        return {key: Evaluation.from_dict(value) for key, value in self.folder.read("evaluation.json").items()}

    @property
    def accuracy(self) -> float:
        """Top-1 in [0, 1] of the weights that count: best on validation, else the last; on test where there is one."""
        for evaluation in self.evaluations.values():
            return evaluation.top1
        raise UserError(f"{self.path} learnt without labels, so it has no accuracy")

    def predict(self, images: list[str], weights: str = "") -> "list[Prediction]":
        """Classify image files or folders; see the function of that name."""
        return predict(str(self.path), images, weights)

    def evaluate(self, data: str = "") -> "dict[str, Evaluation]":
        """Measure on the run's own or other images; see the function of that name."""
        return evaluate(str(self.path), data)

    def export(self, out: str, weights: str = "") -> Path:
        """Write ONNX; see the function of that name."""
        return export(str(self.path), out, weights)

    def student(self, weights: str = "") -> "nn.Module":
        """The trained network in evaluation mode; weights: best, last or ema, by default those that count."""
        from .models.weights import load

        return load(self.folder.weights(weights or self.folder.which()[0]))[0]


def train(
    data: str,
    recipe: str = "default",
    seed: int = 0,
    out: str = "",
    overwrite: bool = False,
    overrides: dict[str, Any] | None = None,
    like: str = "",
) -> Run:
    """Train a student on labelled images, evaluate it and write its report.

    Args:
        data: a folder (CLASS/image, or train/CLASS/image and test/CLASS/image), a CSV (path,label[,split]), a zip,
            a torchvision name such as cifar100, a Hugging Face id, WebDataset shards, or `digits`.
        recipe: a shipped recipe (`viticulture recipes`), a YAML file, or `default`, chosen by the images' size.
        seed: initialisation, order, augmentation and the choice of a subset follow from it.
        out: the run's folder; a new one under runs/ when left out.
        overwrite: replace the run that is in that folder.
        overrides: recipe keys to change, such as {"train.epochs": 10}.
        like: a study's folder (`viticulture compare`): take the recipe that is first there, at its full length.

    Returns: the finished run.
    Raises: UserError for any mistake in data, recipe or machine, before training starts.
    """
    from .training.session import begin

    if like:
        from .study.study import Study

        if recipe != "default":
            raise UserError(f"give --recipe or --like, not both, got {recipe} and {like}")
        found = Study(Path(like))
        recipe = str(found.folder.recipe_file(found.leader.contender))
    return _grow(begin(data, recipe, seed, out, overwrite, overrides or {}, _command()))


def train_row(
    table: str = "",
    row: str = "",
    data: str = "",
    seed: int = 0,
    out: str = "",
    overwrite: bool = False,
    overrides: dict[str, Any] | None = None,
) -> Run:
    """Train one row of a paper's table.

    Args:
        table: its name (`viticulture tables`).
        row: the row's name in it.
        data: where the images are, when not under the name that the table uses.
        seed: as for `train`.
        out: as for `train`.
        overwrite: as for `train`.
        overrides: recipe keys to change on top of the row's.
    """
    from .training.table import read_table

    found = read_table(table).row(row)
    return train(data or found.data, found.recipe, seed, out, overwrite, {**found.overrides, **(overrides or {})})


def resume(run: str, data: str = "") -> Run:
    """Go on with a stopped training, exactly as if it had not been stopped.

    Args:
        run: its folder.
        data: where its images are now, if they have moved.
    """
    from .training.rundir import RunDir
    from .training.session import reopen

    if RunDir.open(run).read("run.json")["status"] == "finished":
        return Run(Path(run))
    return _grow(reopen(run, data))


def evaluate(run: str, data: str = "") -> "dict[str, Evaluation]":
    """Measure a run's weights: on its own test images, or on other labelled images of the same classes.

    Args:
        run: the run's folder.
        data: other images: their test split where they declare one, else all of them.

    Returns: results by weights and split, such as `best/test`; the one that counts comes first.
    """
    from .evaluation.judge import check_classes, judge, judge_other
    from .training.rundir import RunDir
    from .training.session import dataset_of, recipe_of

    folder = RunDir.open(run)
    if data:
        return judge_other(folder, data)
    dataset = dataset_of(folder, recipe_of(folder))
    check_classes(folder, dataset.classes)
    results = judge(folder, dataset)
    return {key: result.evaluation for key, result in results.items()}


def predict(run: str, images: list[str], weights: str = "", out: str = "") -> "list[Prediction]":
    """Classify images.

    Args:
        run: the run's folder.
        images: files, or folders that are searched for images.
        weights: best, last or ema; by default those that count.
        out: a .csv or .json file to write as well.

    Returns: one prediction an image, with the reason for those that could not be read.
    """
    from .evaluation.predict import predict_files, write
    from .training.rundir import RunDir

    folder = RunDir.open(run)
    found = predict_files(folder, weights or folder.which()[0], images)
    if out:
        write(found, Path(out))
    return found


def inspect(data: str) -> "Inspection":
    """Look at a data set as training would read it, without training.

    Args:
        data: a folder, CSV, zip, torchvision name, Hugging Face id or WebDataset pattern.

    Returns: classes, counts, sizes, splits, unreadable files, images that stand in both train and test.
    """
    from .data.inspect import inspect as look
    from .training.progress import showing

    with showing("reading images") as progress:
        return look(data, progress=progress)


def cache(clear: bool = False) -> str:
    """Show what decoded images take on this disk.

    Args:
        clear: remove them; the next training decodes its images anew. Downloaded data sets stay.
    """
    from .data.cache import cache_folder, cached, clear_cache

    freed = f"freed {clear_cache() / 1e9:.2f} GB; " if clear else ""
    stores = cached()
    return f"{freed}{len(stores)} stores and indexes take {sum(stores.values()) / 1e9:.2f} GB in {cache_folder()}"


def export(run: str, out: str, weights: str = "") -> Path:
    """Write a run's student as ONNX.

    Args:
        run: the run's folder. Its weights/ folders already hold safetensors and config.json that timm loads.
        out: the .onnx file.
        weights: best, last or ema; by default those that count.
    """
    from .export import to_onnx
    from .models.weights import load
    from .training.rundir import RunDir

    folder = RunDir.open(run)
    student, task, _ = load(folder.weights(weights or folder.which()[0]))
    return to_onnx(student, Path(out), task)


def compare(
    data: str,
    recipes: tuple[str, ...] = (),
    amounts: Amounts = ALL_IMAGES,
    seeds: int = 3,
    terms: Terms = EQUAL_EPOCHS,
    where: Where = HERE,
    overrides: dict[str, Any] | None = None,
) -> "Study":
    """Find out which method grows the best ViT on these images: recipes x amounts of data x seeds, with error bars.

    `viticulture compare resume STUDY` goes on after a stop; `viticulture compare --table TABLE` trains a paper's table.

    Args:
        data: as for `train`.
        recipes: what is compared, such as default/photos,dhvt/digits; the first is the baseline. Left out: a plain ViT,
            a CNN, a hybrid and guided ViTs for images of this size, within an hour unless told otherwise.
        amounts: how many training images are learnt from.
        seeds: trainings of everything; each draws its own subset, initialisation and order.
        terms: how long everything may train.
        where: the study's folder, and who trains.
        overrides: recipe keys that hold for all.

    Returns: the study: answer, winner, rows, table (pandas), path with report.html.
    """
    from .study.declare import of_own_images

    return _compare(of_own_images(data, tuple(recipes), amounts, seeds, terms, overrides or {}), where)


def compare_table(
    table: str = "",
    data: str = "",
    seeds: int = 1,
    terms: Terms = OWN_LENGTHS,
    where: Where = HERE,
    overrides: dict[str, Any] | None = None,
) -> "Study":
    """Train a paper's table and put the published numbers beside ours.

    Args:
        table: its name (`viticulture tables`).
        data: where the images are, when not under the names that the table uses.
        seeds: trainings of every row.
        terms: as for `compare`; every recipe has its own length unless told otherwise.
        where: as for `compare`.
        overrides: recipe keys that hold for all rows.
    """
    from .study.declare import of_a_table

    return _compare(of_a_table(table, data, seeds, terms, overrides or {}), where)


def compare_resume(study: str, data: str = "", where: Where = HERE) -> "Study":
    """Go on with a study: train what is missing, failed or was added to its study.yaml.

    Args:
        study: its folder.
        data: where its images are now, if they have moved.
        where: who trains; `out` stays empty.
    """
    from .study.folder import StudyDir

    if where.out:
        raise UserError(f"a study goes on in its own folder; leave out --out {where.out}")
    return _conduct(StudyDir.open(study), where, data)


def report(run: str) -> Path:
    """Write a run's or a study's report.html anew.

    Args:
        run: the folder.
    """
    if (Path(run) / "study.json").exists():
        from .report.study_page import write_study
        from .study.study import Study

        return write_study(Study(Path(run)))
    from .evaluation.judge import judge
    from .report.run_page import write_page
    from .training.rundir import RunDir
    from .training.session import dataset_of, recipe_of

    folder = RunDir.open(run)
    dataset = dataset_of(folder, recipe_of(folder))
    return write_page(folder, dataset, judge(folder, dataset))


def explain(run: str, beside: str = "", images: int = 1152) -> Path:
    """Look inside a run's ViT: how far its heads look, which layers are alike, what they smooth.

    Args:
        run: its folder.
        beside: another run's folder, whose layers are compared with this one's on the same images.
        images: how many to look at, of those that did not teach where there are any.

    Returns: the page, explain.html in the run's folder.
    """
    from .report.explain_page import write_explanation
    from .training.rundir import RunDir
    from .training.session import dataset_of, recipe_of

    folder, other = RunDir.open(run), RunDir.open(beside) if beside else None
    return write_explanation(folder, dataset_of(folder, recipe_of(folder)), images, other)


def links(run: str, out: str = "", threshold: float = 0.05, rule: str = "magnitude") -> "Sheet":
    """Extract the links worth keeping from a run that was guided by attention links.

    Args:
        run: its folder.
        out: a .yaml file to write; a recipe names it as guides.attention_link.links.
        threshold: strength from which a link is kept, between 0 and 1; the paper's is 0.05.
        rule: magnitude scales |w| to [0, 1] over all links; printed scales w, as the paper's Algorithm 1 is printed.

    Returns: the strength of every link, and which are kept.
    """
    from .analysis import link_extraction as extraction
    from .disk import replacing
    from .errors import unknown
    from .models.links import write_link_set
    from .report.links import link_table
    from .training.rundir import RunDir

    rules = {"magnitude": extraction.magnitude_strengths, "printed": extraction.printed_strengths}
    if rule not in rules:
        raise unknown("rule", rule, rules)
    found = extraction.read_links(RunDir.open(run)).links
    strengths = rules[rule](found)
    linked = extraction.select(strengths, threshold)
    note = f"Links of {run} stronger than {threshold:g} (rule {rule})."
    if out:
        with replacing(Path(out)) as part:
            part.write_text(f"# {note}\n{write_link_set(linked)}", encoding="utf-8")
        note += f" Train with them: --guides.attention_link.links {out}"
    return link_table(list(found.channels), strengths, linked, note)


def localise(run: str, data: str = "", boxes: str = "", weights: str = "") -> "Sheet":
    """Measure whether a ViT that learnt classes alone looks where the object is, on images whose objects have boxes.

    Args:
        run: its folder.
        data: other images: their test split where they declare one, else all of them.
        boxes: lines of NAME LEFT TOP RIGHT BOTTOM, CUB-200-2011's bounding_boxes.txt, or COCO's .json.
        weights: best, last or ema; by default those that count.

    Returns: the share of images whose box is found (MaxBoxAcc), at several overlaps.
    """
    from .data.boxes import read_boxes
    from .evaluation import localise as judge
    from .report.localisation import localisation_table
    from .training.rundir import RunDir
    from .training.session import dataset_of, recipe_of

    if not boxes:
        raise UserError("true boxes are needed to judge by: --boxes FILE")
    true, folder = read_boxes(boxes), RunDir.open(run)
    images = judge.other_images(folder, data) if data else judge.held_out(dataset_of(folder, recipe_of(folder)))
    return localisation_table(judge.localise(folder, images, true, weights))


def recipes() -> "Sheet":
    """List the shipped recipes with what their headers say."""
    from .report.words import recipe_list
    from .training.recipe import about, shipped

    return recipe_list({name: about(name) for name in shipped()})


def tables() -> "Sheet":
    """List the papers' tables, row by row, with published numbers."""
    from .report.words import table_list
    from .training.table import read_table
    from .training.table import tables as files

    return table_list({name: read_table(name) for name in files()})


def models(pattern: str = "") -> str:
    """List the students: our own, or every timm classifier whose name matches.

    Args:
        pattern: such as `*tiny*`.
    """
    from .models.students import matching

    return "\n".join(matching(pattern))


def reference() -> str:
    """Every recipe key with its type, default and meaning."""
    from .training.recipe import reference as text

    return text()


def resolved(recipe: str, overrides: dict[str, Any], data: str = "") -> str:
    """A recipe with overrides applied and defaults filled in, as YAML; the data chooses the default recipe."""
    from .training.recipe import read, resolve

    if recipe == "default":
        from .data.sources import open_source
        from .training.session import default_recipe

        recipe = default_recipe(open_source(data))
    return resolve(recipe, read(recipe), overrides).to_yaml()


def say(result: Any) -> None:
    """Print what a verb returned as a person wants to see it."""
    from .report.words import say as words

    words(result)


def demo() -> "Sheet":
    """Grow two ViTs from 200 handwritten digits in a minute or two, beside classifiers that learn no features.

    Returns: a table of test accuracies; each run's report.html holds the rest.
    """
    from .evaluation.reference import reference_lines
    from .report.sheet import Column, Sheet
    from .training.rundir import fresh
    from .training.session import dataset_of, recipe_of

    labels = {"data.per_class": 20}
    plain = train("digits", "default/digits", out=str(fresh("runs", "demo-vit")), overrides=labels)
    hybrid = train("digits", "dhvt/digits", out=str(fresh("runs", "demo-dhvt")), overrides=labels)
    dataset = dataset_of(plain.folder, recipe_of(plain.folder))
    assert dataset.test is not None
    rows = [("DHVT, the hybrid ViT", hybrid.accuracy), ("plain ViT", plain.accuracy)]
    rows += reference_lines(dataset.train, dataset.test).items()
    note = f"200 training images, {len(dataset.test)} test images, one seed. Look at {hybrid.path / 'report.html'}"
    return Sheet("Digits: test accuracy", [Column(""), Column("top-1", "percent")], rows, note)


def _grow(session: "Session") -> Run:
    """Train, measure, report."""
    from .evaluation.judge import judge
    from .report.run_page import write_page
    from .report.words import introduce
    from .training.processes import is_leader
    from .training.run import fit

    if is_leader():
        introduce(session)
    fit(session)
    if is_leader():
        write_page(session.run, session.dataset, judge(session.run, session.dataset))
        session.run.update(status="finished")  # last: a kill before this is made good by resume
        session.run.unlock()
    return Run(session.run.path)


def _compare(grid: "Grid", where: Where) -> "Study":
    """Make a new study's folder, and go on with it."""
    from .study.folder import StudyDir
    from .study.grid import slug
    from .training.rundir import fresh

    path = Path(where.out) if where.out else fresh("studies", slug(grid.table or Path(grid.data).stem))
    folder = StudyDir.create(path, grid, _command())
    try:
        return _conduct(folder, where)
    except UserError:
        folder.discard()  # a mistake that shows before the first cell leaves nothing behind
        raise


def _conduct(folder: "StudyDir", where: Where, data: str = "") -> "Study":
    """Plan, train, report."""
    from .report.study_page import write_study
    from .report.words import introduce_study
    from .study.prepare import conduct
    from .study.study import Study

    def tell(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    conduct(folder, where, tell, introduce_study, data)
    found = Study(folder.path)
    write_study(found)
    return found


def _command() -> str:
    """The shell command that this process runs, without folders of this machine; a Python program's name otherwise."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    return shlex.join([name if name != "__main__.py" else "viticulture", *words]) if name else f"python ({os.getpid()})"
