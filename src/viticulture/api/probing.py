# SPDX-License-Identifier: Apache-2.0
"""Commands on frozen networks: evaluate them, make them runs with a new classifier, review data by their features,
choose the images to label next."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..config.keys import PROBE
from ..errors import UserError
from ..outputs import check_out
from ..text import log
from .analyses import report
from .arguments import as_source, checked, run_folder_of, trained_run
from .run import Run
from .training import command, train

if TYPE_CHECKING:
    from ..table import Table


@checked
def probe(
    run: Any | list[str],
    data: Any = "",
    features: str = "",
    weights: str = "",
    out: str = "",
    overrides: dict[str, Any] | None = None,
) -> "Table | Run":
    """Train a classifier on a frozen network's features; rank several networks.

    One network is evaluated by linear classifiers and nearest neighbors. Several are ranked: each gets a linear
    classifier, validation images that the data has, or else cross-validation, order them, and test images give
    intervals, also of the difference from the first over the same images.

    Args:
        run: a network, or several: runs (pre-training runs too), folders of weights, timm models, hf-hub:OWNER/NAME, or
            ARCHITECTURE=FILE, such as mae_base=mae_pretrain_vit_base.pth; then the images.
        data: labeled images with splits to fit, select and test on; by default those of the run. In Python also an
            object, as for `explain`.
        features: class (token) or mean (over tokens), of one network without a new run; by default all it has.
        weights: of a run: best, last or ema; by default those its results are for.
        out: a folder for a run with the network and its new classifier, by recipe probe/photos and recipe keys, such as
            --image-size; of several networks for a run each. Or a .json file to write; by default probe.json in the
            run's folder, and its report.html.
        overrides: recipe keys of the new run, such as {"images.image_size": 128}.

    Returns: the new run, or test accuracies. A .json file holds every setting tried.
    """
    from ..evaluation.probe.evaluate import probe as probe_features
    from ..evaluation.probe.evaluate import save
    from ..report.measurements import probe_table

    networks = [run_folder_of(each) for each in (run if isinstance(run, list | tuple) else [run])]
    if len(networks) > 1 and isinstance(data, str) and not data:
        *networks, data = networks
    names_file = re.fullmatch(r"\.[a-zA-Z]\w*", Path(out).suffix) is not None  # v1.2 is a folder
    if names_file:
        check_out(out, ".json")
    leaves_run = bool(out) and not names_file
    if len(networks) > 1 or leaves_run:
        for option, value in (("--features", features), ("--weights", weights)):
            if value:
                raise UserError(f"{option} is for one network without a new run, got {value}; leave it out")
        if out and not leaves_run:
            raise UserError(f"several networks leave a run each in a folder, and {out} is a file; name a folder")
        if isinstance(data, str) and not data:
            raise UserError("labeled images are needed: viticulture probe NETWORK DATA --out FOLDER")
        _check_labeled(overrides or {})
        if len(networks) == 1:
            return train(data, PROBE, out=out, overrides={**(overrides or {}), "student.init": networks[0]})
        if "method.decay" in (overrides or {}):
            raise UserError("method.decay is chosen for each network, by which they are ranked; leave it out")
        return _ranked(networks, data, out, overrides or {})
    if overrides:
        raise UserError(f"{next(iter(overrides))} is a key of a recipe, and no run is trained; add --out FOLDER")
    result = probe_features(networks[0], as_source(data), features, weights)
    if save(result, out) and not out:
        report(networks[0])
    return probe_table(result)


@checked
def review(data: Any, out: str = "review.html", overrides: dict[str, Any] | None = None) -> "Table":
    """Find images with labels that may be wrong, near-duplicates, blank images and outliers.

    Near-duplicates count where their labels differ. Every image is predicted by a classifier that was trained on
    others, on the features of a frozen network (--init).

    Args:
        data: labeled images, one class each; those of all splits are reviewed. In Python also an object, as for
            `train`.
        out: the page to write, .html, and next to it the list, .csv, which Label Studio imports and
            `train --data.leave_out` reads; existing lists stay.
        overrides: recipe keys, such as {"student.init": "mobilenetv3_small_100", "images.image_size": 128}.

    Returns: the images to look at, by reason.
    """
    from ..evaluation.review import review as reviewed
    from ..outputs import write_out
    from ..report.review_page import review_csv, review_page, summary

    page, table = _page_and_list(out)
    _check_labeled(overrides or {})
    result = reviewed(as_source(data), overrides or {})
    write_out(table, review_csv(result))
    write_out(page, review_page(result, table.name))
    return summary(result)


@checked
def label_next(run: Any, images: list[str], count: int = 50, out: str = "next.html") -> "Table":
    """Choose the unlabeled images to label next.

    They are images that the run is uncertain about and that differ from each other. Images of the run's own data are
    left out by their pixels, and so are copies among the others.

    Args:
        run: the run of a classifier, or hf-hub:USER/NAME; `viticulture probe NETWORK DATA --out RUN` makes one of a
            public network in minutes.
        images: unlabeled images, files or folders; in Python also pictures, see `Run.predict`.
        count: number of images to choose.
        out: the page to write, .html, and next to it the list, .csv, which Label Studio imports; existing lists stay.

    Returns: the chosen images, the most useful first, with the run's predictions.
    """
    from ..evaluation.inputs import as_images
    from ..evaluation.label_next import choose_next
    from ..outputs import write_out
    from ..report.review_page import next_csv, next_page, next_summary
    from ..tasks.task import items_of, task_of

    page, table = _page_and_list(out)
    folder = trained_run(run_folder_of(run))
    if (task := task_of(folder)).contents not in ("classes", "labels"):
        raise UserError(
            f"images to label next are those with uncertain classes, and {run} {task.does}; name a classifier"
        )
    result = choose_next(folder, items_of(as_images(images)), count)
    for warning in result.warnings:
        log(f"note     {warning}")
    write_out(table, next_csv(result))
    write_out(page, next_page(result, table.name))
    return next_summary(result, table.name)


def _check_labeled(overrides: dict[str, Any]) -> None:
    """Raises: UserError for images without labels."""
    if "data.unlabeled" in overrides:
        raise UserError("a classifier is fitted to labels, and data.unlabeled has none; leave it out")


def _page_and_list(out: str) -> tuple[Path, Path]:
    """Check and return the files of a page and of its list. Raises: UserError for a list that exists."""
    page = check_out(out, ".html")
    if (table := page.with_suffix(".csv")).exists():
        raise UserError(f"{table} exists, and may hold decisions; move it, or choose another --out")
    return page, check_out(table, ".csv")


def _ranked(networks: Sequence[str], data: Any, out: str, overrides: dict[str, Any]) -> "Table":
    """Train a classifier on each network, and compare the runs; they stay in the folder `out`, if any.

    Raises: UserError for data without held-out images.
    """
    from ..config.load import load_config
    from ..data.splits import select
    from ..report.measurements import network_table
    from ..tasks.task import task_of
    from ..training.data import open_for
    from ..training.run import fit
    from ..training.session import begin
    from ..waiting import waiting

    config = load_config(PROBE, overrides)
    source = open_for(config, data)
    if source.classes and not select(source, config.data, 0)[0].keys() & {"test", "val"}:
        raise UserError(
            f"networks are ranked by held-out images, and {source.name} has none; set data.test_fraction, such as 0.2"
        )
    runs = {}
    with TemporaryDirectory(prefix="viticulture-probe-") if not out else nullcontext(out) as folder:
        for number, network in enumerate(networks, 1):
            stem = "".join(letter if letter.isalnum() else "-" for letter in Path(network.partition("=")[0]).name)
            place, keys = str(Path(folder, f"{number}-{stem}")), {**overrides, "student.init": network}
            if out:
                runs[network] = train(data, PROBE, out=place, overrides=keys).folder
                continue
            with waiting(f"probing {network}"):
                session = begin(data, PROBE, 0, place, False, keys, command())
                fit(session)
                task_of(session.run).evaluate(session.dataset)
                session.run.unlock()
            runs[network] = session.run
        return network_table(runs)
