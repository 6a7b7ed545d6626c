# SPDX-License-Identifier: Apache-2.0
"""What classifiers on frozen features reach, as a table."""

from ...evaluation.probe.evaluate import Finding, Probe
from .sheet import Column, Sheet

FEATURES = {"class": "class token", "mean": "mean over the image"}


def probe_table(found: Probe) -> Sheet:
    """A row for each kind of features and way to judge them."""
    columns = [Column("features"), Column("classifier"), Column("chosen"), Column("validation", "percent")]
    columns += [Column("test", "percent"), Column("95 % interval")]
    rows = [
        (FEATURES[one.features], one.classifier, _setting(one), one.val, one.top1, _interval(one))
        for one in found.findings
    ]
    images = found.images
    note = (
        f"{found.classes} classes; {images['train']:,} images to learn from, {images['val']:,} to choose by, "
        f"{images['test']:,} to test. Best on validation: {found.best.classifier} on the "
        f"{FEATURES[found.best.features]}."
    )
    weights = f", weights {found.weights}" if found.weights else ""
    return Sheet(f"Frozen features of {found.subject}{weights} on {found.data}: top-1", columns, rows, note)


def _setting(one: Finding) -> str:
    return f"k {one.setting:g}" if one.classifier == "k-NN" else f"decay {one.setting:g}"


def _interval(one: Finding) -> str:
    low, high = one.top1_interval
    return f"{100 * low:.1f} to {100 * high:.1f} %"
