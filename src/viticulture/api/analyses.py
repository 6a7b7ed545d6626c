# SPDX-License-Identifier: Apache-2.0
"""Verbs that look: at data, at what a run or a study found, inside a student."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, unknown
from .arguments import as_source, checked, run_folder_of

if TYPE_CHECKING:
    from ..data.inspect import Inspection
    from ..data.inspect_dense import DenseInspection
    from ..table import Table


@checked
def inspect(data: Any, out: str = "") -> "Inspection | DenseInspection":
    """Look at a data set as training would read it, without training; `viticulture.data` is the same.

    Args:
        data: a folder, CSV, zip, torchvision name, Hugging Face id or WebDataset pattern; in Python also an object as
            for `train`.
        out: a .csv file to write: all pairs of near-duplicates (the same picture saved again, shrunk or slightly
            changed) with their paths, splits and classes.

    Returns: classes, counts, sizes, splits, unreadable files, images that stand in both train and test.
    """
    from ..config.load import read
    from ..data.decoded_cache import find_near_duplicates
    from ..data.inspect import CopyPair, Inspection, copy_pairs
    from ..data.inspect import inspect as inspect_source
    from ..data.inspect_dense import DenseInspection, inspect_dense
    from ..data.open_dense import open_any
    from ..data.sources.annotated import DenseSource
    from ..outputs import check_out, csv_text, write_out
    from ..training.data import ANNOTATED
    from ..training.progress import showing

    if out:
        check_out(out, ".csv")
    word = as_source(data)
    source = open_any(word)
    inspection: Inspection | DenseInspection
    with showing("reading images") as progress:
        if isinstance(source, DenseSource):
            image_size = read(f"{ANNOTATED[source.kind][1]}/photos")["images"]["image_size"]
            images, inspection = source.images, replace(inspect_dense(source, image_size), data=str(word))
            pairs = copy_pairs(images, images.splits, find_near_duplicates(images, progress)) if out else ()
        else:
            inspection = inspect_source(source, progress=progress)
            pairs = inspection.pairs
    if out:
        write_out(out, csv_text([CopyPair._fields, *pairs]))
    return inspection


@checked
def report(run: Any, beside: Any = "") -> Path:
    """Write a run's or a study's report.html anew, from what its folder holds; a study's tables, too.

    Args:
        run: the folder.
        beside: another run on the same images, such as a small CNN's, whose accuracy this run's page shows from now on.
    """
    run, beside = run_folder_of(run), run_folder_of(beside)
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

    if beside:
        from ..evaluation.model import check_classes
        from ..evaluation.reference import add_reference
        from ..tasks.classification import Classification
        from ..tasks.task import task_of

        ours, theirs = RunFolder.open(run), RunFolder.open(beside)
        for folder in (ours, theirs):
            check_classes(folder, tuple(folder.read("run.json")["data"]["classes"]))
            if (task := task_of(folder)).name != Classification.name:
                raise UserError(f"{folder.path} {task.does}, and --beside shows top-1; leave it out")
        results = task_of(theirs).read_results()
        counting = results.counting if results is not None else None
        add_reference(ours, theirs, results.counts if results else "", counting.top1 if counting else None)
    return write_page(RunFolder.open(run))


@checked
def explain(
    run: Any,
    data: Any = "",
    beside: str = "",
    images: int = 1152,
    reading: str = "",
    layers: tuple[int, ...] = (),
    out: str = "",
) -> Path:
    """Look inside a ViT: how far its heads look, which layers are alike, what they smooth, what they hold of an image.

    A run that the guide bootstrap taught shows its agent CNN's features beside its own, out of checkpoints/last.ckpt.

    Args:
        run: its folder; or a folder of weights, a timm model with pretrained weights, or ARCHITECTURE=FILE.
        data: other images than the run's; of a network that is no run, what to look at. In Python also an object as for
            `train`; that which the run learnt from stands for its own images.
        beside: another run or network, whose layers are compared with this one's on the same images.
        images: how many to look at, of those that did not teach where there are any.
        reading: what stands for a layer: norms (its input, normalized) or blocks (its output, of any network). Left
            out: norms, where the networks have them.
        layers: whose attention and features are drawn, as 2,4,6, the first being 1; by default up to four of all.
        out: an .html file to write instead of explain.html in the run's folder; the numbers go into a .json beside it.

    Returns: the page. Of a run, all numbers are in explain.json beside it, and `viticulture report RUN` shows them too.
    """
    from ..analysis.explanation import ExplainOptions, explain_any, explain_run
    from ..disk import write_whole
    from ..outputs import check_out
    from ..report.explain_page import explanation_page, write_explanation
    from ..training.run_folder import RunFolder
    from ..training.run_inputs import config_of, dataset_of, stands_for_own

    run, data = run_folder_of(run), as_source(data)
    is_run, options = (Path(run) / "run.json").exists(), ExplainOptions(images, beside, reading, layers)
    if is_run and not out and stands_for_own(folder := RunFolder.open(run), data):
        explanation = explain_run(folder, dataset_of(folder, config_of(folder), data), options)
        return write_explanation(folder, explanation)
    if not out or not (is_run or data):
        raise UserError(
            "a network that is no run, or other images, need a page: viticulture explain NETWORK DATA --out inside.html"
        )
    page = check_out(out, ".html")
    explanation = explain_any(run, data, options)
    name = Path(run).name if is_run else run
    write_whole(page.with_suffix(".json"), explanation.to_dict())
    return write_whole(page, explanation_page(f"Inside {name}", name, explanation))


@checked
def links(run: Any, out: str = "", threshold: float = 0.05, rule: str = "magnitude", guide: str = "") -> "Table":
    """Extract the links worth keeping from a run that was guided by attention links.

    Args:
        run: its folder.
        out: a .yaml file to write; a recipe names it as `links` of that guide.
        threshold: strength from which a link is kept, between 0 and 1; the paper's is 0.05.
        rule: magnitude scales |w| to [0, 1] over all links; printed scales w, as the paper's Algorithm 1 is printed.
        guide: whose links, where several of the run's guides have some.

    Returns: the strength of every link, and which are kept.
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
def probe(run: Any, data: Any = "", features: str = "", weights: str = "", out: str = "") -> "Table":
    """Judge a frozen network by linear classifiers and nearest neighbors on its features; pre-training runs too.

    Args:
        run: its folder; or a folder of weights, a timm model with pretrained weights, or ARCHITECTURE=FILE, such as
            mae_base=mae_pretrain_vit_base.pth.
        data: labeled images, learnt from, chosen by and tested on by their splits. Left out: those of the run. In
            Python also an object, as for `explain`.
        features: class (token) or mean (over the image); by default all that the network has.
        weights: best, last or ema of a run; by default those that count.
        out: a .json file to write; by default probe.json in the run's folder, and a part of its report.html.

    Returns: test accuracies. The file holds every setting that was tried.
    """
    from ..evaluation.probe.evaluate import keep
    from ..evaluation.probe.evaluate import probe as probe_features
    from ..outputs import check_out
    from ..report.measurements import probe_table

    if out:
        check_out(out, ".json")
    run = run_folder_of(run)
    result = probe_features(run, as_source(data), features, weights)
    if keep(result, out) and not out:
        report(run)
    return probe_table(result)


@checked
def localize(
    run: Any, boxes: str, data: str = "", weights: str = "", out: str = "", protocol: str = "published"
) -> "Table":
    """Measure whether a ViT that learnt classes alone looks where the object is, on images whose objects have boxes.

    Args:
        run: its folder.
        data: other images: their test split where they declare one, else all of them.
        boxes: lines of NAME LEFT TOP RIGHT BOTTOM, CUB-200-2011's bounding_boxes.txt, or COCO's .json.
        weights: best, last or ema; by default those that count.
        out: an .html file to write, with pictures.
        protocol: published shows an image squeezed whole and takes 1,000 thresholds, as the measure's authors do;
            evaluation shows what the run's evaluation shows.

    Returns: the share of images whose box is found (MaxBoxAcc), at several overlaps. The run's report.html and
        localization.json hold it too.
    """
    from ..evaluation.localization import evaluate as localization
    from ..evaluation.localization.boxes import read_boxes
    from ..evaluation.localization.metrics import PROTOCOLS
    from ..evaluation.localization.results import keep
    from ..outputs import check_out, write_out
    from ..report.measurements import localization_page, localization_table
    from ..training.run_folder import RunFolder
    from ..training.run_inputs import config_of, dataset_of

    run = run_folder_of(run)
    if not boxes:
        raise UserError("true boxes are needed to judge by: --boxes FILE")
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    if out:
        check_out(out, ".html")
    true, folder = read_boxes(boxes), RunFolder.open(run)
    dataset = None if data else dataset_of(folder, config_of(folder))
    images = localization.held_out(dataset) if dataset else localization.other_images(folder, data)
    result = localization.localize(folder, images, true, weights, PROTOCOLS[protocol])
    keep(folder, dataset.name if dataset else data, result)
    report(run)
    if out:
        write_out(out, localization_page(result, folder, dataset.name if dataset else data))
    return localization_table(result)


@checked
def robustness(run: Any, data: Any = "", limit: int = 1000, weights: str = "") -> "Table":
    """Measure errors on corrupted images, 19 corruptions at 5 severities, or on ImageNet-A, -R and -C.

    Args:
        run: its folder.
        data: another labeled test set; or a folder of CORRUPTION/SEVERITY/CLASS/image, as ImageNet-C, or of some
            of ImageNet's classes by WordNet id, as ImageNet-A and -R, or by number, as ImageNet-V2, which are judged as
            they are; or ReaL's real.json, for the run's own test images. In Python also an object, as for `explain`.
        limit: test images to corrupt, evenly spread over the set; 0 for all.
        weights: best, last or ema; by default those that count.

    Returns: errors by corruption and severity, their mean, and for ImageNet's classes mCE. The run's report.html,
        robustness.json and robustness.csv hold them too; a stopped evaluation goes on where it was.
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
