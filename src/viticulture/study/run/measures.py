# SPDX-License-Identifier: Apache-2.0
"""Numbers of a run besides its accuracy, by the names that tables give them."""

import csv
from pathlib import Path
from statistics import fmean

from ...evaluation.agreement.evaluate import read_agreement
from ...evaluation.localization.metrics import OVERLAPS, PUBLISHED
from ...evaluation.localization.results import read_localizations
from ...evaluation.probe.evaluate import read_probes
from ...evaluation.results import read_evaluations
from ...evaluation.robustness.evaluate import read_robustness
from ...training.rundir import RunDir


def other_measure(run: RunDir, measure: str) -> float | None:
    """What a table's number is where it is not the student's accuracy; None where the run does not know it.

    top5                           the true class is among the five likeliest; None where there are fewer classes
    divergence/HEAD/TEACHER        nats, from agreement.json
    robustness/FOLDER/HEAD         from robustness.json: the mean error of corruptions; accuracy where there are none
    localization/0.3,0.5           from localization.json, published protocol: MaxBoxAcc, or its mean over overlaps
    probe/CLASSIFIER               from probe.json: linear probe or k-NN, of the features that validation chooses
    ap, ap50, ap75, ap_masks       of a detector, from dense.json: AP of boxes, at an overlap of 0.5 or 0.75, of masks;
    miou, pixels                   of a segmenter: mean IoU, share of its pixels that are right. `accuracy`, which says
                                   nothing of these, is the first of each; map, micro_f1, macro_f1, exact of several
                                   labels an image. (All taken by `outcomes`.)
    anything else                  the last value that a guide measured on held-out images while it trained
    """
    kind, _, rest = measure.partition("/")
    name, _, of = rest.partition("/")
    if kind == "top5":
        results = read_evaluations(run)
        evaluation = results and (results.of_split("test") or results.counting)
        return evaluation.topk if evaluation and evaluation.k == 5 else None
    if kind == "divergence":
        agreement = read_agreement(run)
        heads = [head.removesuffix(" token") for head in agreement.heads] if agreement else []
        if agreement is None or name not in heads or of not in agreement.teachers:
            return None
        return agreement.divergence[heads.index(name)][agreement.teachers.index(of)]
    if kind == "robustness":
        for data, result in read_robustness(run).items():
            if Path(data).name == name and of in result.heads:
                head = result.heads.index(of)
                return result.mean_error(head) if result.errors else 1 - result.clean[head]
        return None
    if kind == "probe":
        findings = [finding for probe in read_probes(run) for finding in probe.findings if finding.classifier == rest]
        return max(findings, key=lambda finding: finding.val).top1 if findings else None
    if kind == "localization":
        positions = [OVERLAPS.index(float(overlap)) for overlap in rest.split(",")]
        known = [result for result in read_localizations(run).values() if result.protocol == PUBLISHED.name]
        return fmean(known[0].largest.accuracies[position] for position in positions) if known else None
    return _last_value(run, measure)


def _last_value(run: RunDir, measure: str) -> float | None:
    names = {f"{split}/{measure}" for split in ("test", "val")}
    last = None
    if run.metrics.exists():
        with run.metrics.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["name"] in names:
                    last = float(row["value"])
    return last
