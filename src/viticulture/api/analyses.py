# SPDX-License-Identifier: Apache-2.0
"""Commands that analyze data sets, runs and networks."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, unknown
from .arguments import as_source, checked, run_folder_of

if TYPE_CHECKING:
    from ..data.inspect import Inspection
    from ..table import Table


@checked
def inspect(data: Any, out: str = "") -> "Inspection":
    """Inspect a data set as training reads it: counts, sizes, unreadable images, duplicates.

    `viticulture.data` is the same function.

    Args:
        data: a folder, CSV, zip, torchvision name, Hugging Face id or WebDataset pattern; in Python also an object as
            for `train`.
        out: a .csv file to write: all pairs of near-duplicates (the same picture saved again, shrunk or slightly
            changed) with their paths, splits and classes.

    Returns: classes, counts, sizes, splits, unreadable files, images that stand in both train and test.
    """
    from ..config.load import read
    from ..data.inspect import CopyPair
    from ..data.inspect import inspect as inspect_source
    from ..data.open import open_source
    from ..data.sources.source import RECIPES
    from ..outputs import check_out, csv_text, write_out
    from ..training.progress import showing

    word = as_source(data)
    if out and _is(check_out(out, ".csv"), word):
        raise UserError(f"{out} holds the data; choose another name for the pairs of near-duplicates")
    source = open_source(word, annotations_first=True)
    sizes = {}
    if source.targets is not None:
        sizes["image_size"] = read(RECIPES[source.contents])["images"]["image_size"]
    with showing("reading images") as progress:
        inspection = inspect_source(source, progress, **sizes)
    inspection = replace(inspection, data=word) if isinstance(word, str) else inspection
    if out:
        write_out(out, csv_text([CopyPair._fields, *inspection.pairs]))
    return inspection


def _is(out: Path, data: Any) -> bool:
    """Return whether a file to write is the data."""
    return isinstance(data, str) and bool(data) and out.resolve() == Path(data).expanduser().resolve()


@checked
def report(run: Any, compare_with: Any = "") -> Path:
    """Write the report.html of a run or a study again from its files.

    Args:
        run: the folder of the run or study.
        compare_with: another run on the same images, such as a small CNN; its accuracy is added to this run's page.
    """
    run, compare_with = run_folder_of(run), run_folder_of(compare_with)
    if (Path(run) / "study.json").exists():
        from ..report.study_page import write_study
        from ..study.halving import write_table
        from ..study.outcomes import Outcomes
        from ..study.study import Study

        study = Study(Path(run))
        write_table(study.folder, Outcomes(study.folder))
        return write_study(study)
    from ..report.run_page import write_page
    from ..training.run_folder import RunFolder

    if compare_with:
        from ..evaluation.model import check_classes
        from ..evaluation.reference import add_reference
        from ..tasks.task import task_of

        ours, theirs = RunFolder.open(run), RunFolder.open(compare_with)
        for folder in (ours, theirs):
            check_classes(folder, tuple(folder.read("run.json")["data"]["classes"]))
            if not (task := task_of(folder)).predicts_one_class:
                raise UserError(f"{folder.path} {task.does}, and --compare-with shows top-1; leave it out")
        results = task_of(theirs).read_results()
        counting = results.counting if results is not None else None
        add_reference(ours, theirs, results.counts if results else "", counting.top1 if counting else None)
    return write_page(RunFolder.open(run))


@checked
def explain(
    run: Any,
    data: Any = "",
    compare_with: str = "",
    images: int = 1152,
    reading: str = "",
    layers: tuple[int, ...] = (),
    out: str = "",
) -> Path:
    """Analyze a ViT's layers: attention distance, similarity, frequencies, features.

    For a run trained with the guide bootstrap, the features of its agent CNN in checkpoints/last.ckpt are added.

    Args:
        run: a run's folder, a folder of weights, a timm model with pretrained weights, or ARCHITECTURE=FILE.
        data: images to use instead of the run's own; required for a network that is not a run. In Python also an object
            as for `train`.
        compare_with: another run or network, whose layers are compared on the same images.
        images: how many to use, held-out ones where there are any.
        reading: what represents a layer: norms (its normalized input) or blocks (its output, for any network). Default:
            norms, where the networks have them.
        layers: whose attention and features to draw, such as 2,4,6, counted from 1; by default up to four.
        out: an .html file to write instead of the run's explain.html; the numbers go into a .json of that name.

    Returns: the page. A run's numbers are also in its explain.json and report.html.
    """
    from ..analysis.explanation import ExplainOptions, explain_any, explain_run
    from ..disk import write_whole
    from ..outputs import check_out
    from ..report.explain_page import explanation_page, write_explanation
    from ..training.run_folder import RunFolder
    from ..training.run_inputs import config_of, dataset_of, stands_for_own

    run, data = run_folder_of(run), as_source(data)
    is_run, options = (Path(run) / "run.json").exists(), ExplainOptions(images, compare_with, reading, layers)
    if is_run and not out and stands_for_own(folder := RunFolder.open(run), data):
        explanation = explain_run(folder, dataset_of(folder, config_of(folder), data), options)
        return write_explanation(folder, explanation)
    if not out or not (is_run or data):
        raise UserError(
            "for other networks or images, name the page to write: viticulture explain NETWORK DATA --out inside.html"
        )
    page = check_out(out, ".html")
    numbers = check_out(page.with_suffix(".json"), ".json")
    if numbers.exists() and (not page.exists() or _is(numbers, data)):
        raise UserError(f"the numbers would go into {numbers}, which exists; choose another name than {page}")
    explanation = explain_any(run, data, options)
    name = Path(run).name if is_run else run
    write_whole(numbers, explanation.to_dict())
    return write_whole(page, explanation_page(f"Inside {name}", name, explanation))


@checked
def links(run: Any, out: str = "", threshold: float = 0.05, rule: str = "magnitude", guide: str = "") -> "Table":
    """Select the strong links of a run trained with the guide attention_link.

    Args:
        run: the run's folder.
        out: a .yaml file to write, for the guide's key `links` in a recipe.
        threshold: minimum strength of a selected link, in [0, 1]; 0.05 in the paper.
        rule: magnitude scales |w| to [0, 1] over all links; printed scales w, as the paper's Algorithm 1 is printed.
        guide: its name, if several of the run's guides have links.

    Returns: the strength of every link, and which are selected.
    """
    from ..analysis import links as extraction
    from ..models.links import write_link_set
    from ..outputs import check_out, write_out
    from ..report.measurements import link_table
    from ..training.run_folder import RunFolder

    run = run_folder_of(run)
    rules = {"magnitude": extraction.magnitude_strengths, "printed": extraction.printed_strengths}
    if rule not in rules:
        raise unknown("rule", rule, rules)
    if out:
        check_out(out, ".yaml", ".yml")
    trained = extraction.read_links(folder := RunFolder.open(run), guide).links
    strengths = rules[rule](trained)
    linked = extraction.select(strengths, threshold)
    note = f"Links of {run} stronger than {threshold:g} (rule {rule})."
    if out:
        write_out(out, f"# {note}\n{write_link_set(linked)}")
        note += f" Train with them: --guides.{guide or extraction.linked_guides(folder)[0]}.links {out}"
    return link_table(list(trained.channels), strengths, linked, note)


@checked
def localize(
    run: Any, boxes: str, data: str = "", weights: str = "", out: str = "", protocol: str = "published"
) -> "Table":
    """Measure how well a classifier's attention localizes objects, on images with boxes.

    Args:
        run: the run's folder.
        data: other images: their test split if they have one, else all.
        boxes: lines of NAME LEFT TOP RIGHT BOTTOM, CUB-200-2011's bounding_boxes.txt, or COCO's .json.
        weights: best, last or ema; by default those the results are for.
        out: an .html file to write, with pictures.
        protocol: published resizes the whole image and takes 1,000 thresholds, as the metric's authors do; evaluation
            crops as the run's evaluation does.

    Returns: the share of images whose box is found (MaxBoxAcc) at several overlaps; also in the run's report.html and
        localization.json.
    """
    from ..evaluation.localization import evaluate as localization
    from ..evaluation.localization.boxes import read_boxes
    from ..evaluation.localization.evaluate import save
    from ..evaluation.localization.metrics import PROTOCOLS
    from ..outputs import check_out, write_out
    from ..report.measurements import localization_page, localization_table
    from ..tasks.image_task import trained_on
    from ..text import log
    from ..training.run_folder import RunFolder
    from ..training.run_inputs import config_of, dataset_of

    run = run_folder_of(run)
    if not boxes:
        raise UserError("localization needs the true boxes: --boxes FILE")
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if out:
        check_out(out, ".html")
    true, folder = read_boxes(boxes), RunFolder.open(run)
    dataset = None if data else dataset_of(folder, config_of(folder))
    images = localization.held_out(dataset) if dataset else localization.other_images(folder, data)
    result = localization.localize(folder, images, true, weights, PROTOCOLS[protocol])
    own = folder.read("run.json")["data"]["name"]
    name = own if dataset else f"./{data}" if data == own else data
    for warning in [] if dataset else trained_on(folder, images):
        log(f"note     {warning}")
    save(folder, name, result)
    report(run)
    if out:
        write_out(out, localization_page(result, folder, name))
    return localization_table(result)


@checked
def robustness(run: Any, data: Any = "", limit: int = 1000, weights: str = "") -> "Table":
    """Measure errors on corrupted images (19 kinds) or on ImageNet-A, -R and -C.

    Args:
        run: the run's folder.
        data: another labeled test set to corrupt; or a set to evaluate as it is: CORRUPTION/SEVERITY/CLASS/image as
            ImageNet-C, some ImageNet classes by WordNet id (ImageNet-A, -R) or number (ImageNet-V2), or ReaL's
            real.json for the run's own test images. In Python also an object, as for `explain`.
        limit: number of test images to corrupt, evenly spread over the set; 0 for all.
        weights: best, last or ema; by default those the results are for.

    Returns: errors by corruption and severity, their mean, and for ImageNet's classes mCE; also in the run's
        report.html, robustness.json and robustness.csv. An interrupted evaluation continues where it stopped.
    """
    from ..analysis.pictures import save_corruptions
    from ..evaluation.robustness.evaluate import evaluate_robustness
    from ..report.measurements import robustness_table
    from ..training.run_folder import RunFolder
    from ..training.run_inputs import config_of, dataset_of, stands_for_own

    folder, data = RunFolder.open(run_folder_of(run)), as_source(data)
    result = evaluate_robustness(folder, data, limit, weights)
    if stands_for_own(folder, data):
        save_corruptions(folder, dataset_of(folder, config_of(folder), data))
    report(str(folder.path))
    return robustness_table(result)
