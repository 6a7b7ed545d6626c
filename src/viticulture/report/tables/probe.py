# SPDX-License-Identifier: Apache-2.0
"""What classifiers on frozen features reach, as a table."""

from ...evaluation.probe.evaluate import Finding, Probe
from ...table import Column, Table

FEATURES = {"class": "class token", "mean": "mean over the image"}


def probe_table(probe: Probe) -> Table:
    """A row for each kind of features and way to judge them."""
    columns = [Column("features"), Column("classifier"), Column("chosen"), Column("validation", "percent")]
    columns += [Column("test", "percent"), Column("95 % interval")]
    rows = [
        (
            FEATURES[finding.features],
            finding.classifier,
            _setting(finding),
            finding.val,
            finding.top1,
            _interval(finding),
        )
        for finding in probe.findings
    ]
    images = probe.images
    note = (
        f"{probe.classes} classes; {images['train']:,} images to learn from, {images['val']:,} to choose by, "
        f"{images['test']:,} to test. Best on validation: {probe.best.classifier} on the "
        f"{FEATURES[probe.best.features]}."
    )
    weights = f", weights {probe.weights}" if probe.weights else ""
    return Table(f"Frozen features of {probe.subject}{weights} on {probe.data}: top-1", columns, rows, note)


def _setting(finding: Finding) -> str:
    return f"k {finding.setting:g}" if finding.classifier == "k-NN" else f"decay {finding.setting:g}"


def _interval(finding: Finding) -> str:
    low, high = finding.top1_interval
    return f"{100 * low:.1f} to {100 * high:.1f} %"
