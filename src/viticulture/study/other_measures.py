# SPDX-License-Identifier: Apache-2.0
"""Numbers of a run besides its accuracy, by the names that tables give them."""

import csv
from pathlib import Path
from statistics import fmean

from ..evaluation.agreement.evaluate import read_agreement
from ..evaluation.localization.metrics import OVERLAPS, PUBLISHED
from ..evaluation.localization.results import read_localizations
from ..evaluation.probe.evaluate import read_probes
from ..evaluation.results import read_evaluations
from ..evaluation.robustness.evaluate import read_robustness
from ..training.run_folder import RunFolder


def other_measure(run: RunFolder, measure: str) -> dict[str, float]:
    """What a table's number is where it is not the student's accuracy, by the split that it is of, test or val (other
    images than the run's are test); empty where the run does not know it.

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
        known = {split: results.of_split(split) for split in ("test", "val")} if results else {}
        return {split: evaluation.topk for split, evaluation in known.items() if evaluation and evaluation.k == 5}
    if kind == "divergence":
        agreement = read_agreement(run)
        heads = [head.removesuffix(" token") for head in agreement.heads] if agreement else []
        if agreement is None or name not in heads or of not in agreement.teachers:
            return {}
        return {agreement.split: agreement.divergence[heads.index(name)][agreement.teachers.index(of)]}
    if kind == "robustness":
        for data, result in read_robustness(run).items():
            if Path(data).name == name and of in result.heads:
                head = result.heads.index(of)
                share = result.mean_error(head) if result.errors else 1 - result.clean[head]
                return {} if share is None else {"val" if data == "validation" else "test": share}
        return {}
    if kind == "probe":
        findings = [finding for probe in read_probes(run) for finding in probe.findings if finding.classifier == rest]
        return {"test": max(findings, key=lambda finding: finding.val).top1} if findings else {}
    if kind == "localization":
        positions = [OVERLAPS.index(float(overlap)) for overlap in rest.split(",")]
        for key, localized in read_localizations(run).items():
            if localized.protocol == PUBLISHED.name:
                data = run.read("run.json")["data"]
                own = key.partition("/")[2] == data["name"]
                share = fmean(localized.largest.accuracies[position] for position in positions)
                return {"val" if own and "test" not in data["images"] else "test": share}
        return {}
    return _last_values(run, measure)


def _last_values(run: RunFolder, measure: str) -> dict[str, float]:
    splits = {f"{split}/{measure}": split for split in ("test", "val")}
    last = {}
    if run.metrics.exists():
        with run.metrics.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if (split := splits.get(row["name"])) is not None:
                    last[split] = float(row["value"])
    return last
