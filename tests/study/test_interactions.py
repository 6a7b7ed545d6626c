# SPDX-License-Identifier: Apache-2.0
"""Sums of methods against their parts, students against their teachers."""

import pytest

from viticulture.report.study_charts import families, family, sums_sentence, teachers_of
from viticulture.study.statistics import Interaction, interactions, separated_sums


def test_a_sums_excess_is_its_gain_minus_its_parts_gains() -> None:
    """By hand; seed 2 is missing of a part."""
    accuracies = {
        "labels": {0: 0.5, 1: 0.4, 2: 0.3},
        "a": {0: 0.6, 1: 0.6, 2: 0.9},
        "b": {0: 0.45, 1: 0.5},
        "a + b": {0: 0.65, 1: 0.6, 2: 0.9},
        "a + b + a": {1: 0.9},
        "a + c": {0: 1.0},
    }
    found = {one.name: one for one in interactions(accuracies, "labels")}
    assert list(found) == ["a + b", "a + b + a"]
    assert found["a + b"].gain == pytest.approx((0.15, 0.2))
    assert found["a + b"].parts_gain == pytest.approx((0.05, 0.3))
    assert found["a + b"].excess == pytest.approx((0.1, -0.1))
    assert found["a + b + a"].excess == pytest.approx((0.5 - 0.2 - 0.1 - 0.2,))
    assert interactions(accuracies, "other") == []


def test_a_sums_excess_has_an_interval_over_seeds() -> None:
    """Student's t(2) at 1 - 0.05 / 2 each: 6.21; of 0.10, 0.11, 0.12 it is 0.11 -+ 0.036."""

    def of(name: str, *excess: float) -> Interaction:
        return Interaction(name, ("a", "b"), excess, (0.0,) * len(excess))

    sure, unsure = of("sure", 0.10, 0.11, 0.12), of("unsure", 0.0, 0.11, 0.22)
    assert separated_sums([sure, unsure]) == (["sure"], [])
    assert separated_sums([of("worse", -0.10, -0.11, -0.12), unsure]) == ([], ["worse"])
    edge = of("edge", 0.10, 0.12, 0.155)  # alone it is told, t(2) at 0.975: 4.30 0.0278 / sqrt(3) = 0.069
    assert separated_sums([edge])[0] == ["edge"]
    assert separated_sums([edge, *(unsure,) * 20]) == ([], [])
    assert separated_sums([of("two", 0.1, 0.11), of("alike", 0.1, 0.1, 0.1)]) == ([], [])
    assert "More than its parts beyond chance (95 % for all 2 sums together" in sums_sentence([sure, unsure])
    assert ": none." in sums_sentence([unsure])
    assert "At least 3 seeds are needed" in sums_sentence([of("two", 0.1, 0.11)])


def test_students_of_one_teacher_are_paired_with_it() -> None:
    one, start = {"guides.logits": {"teacher": "row:t"}}, {"student.init": "row:t"}
    two = {"guides.co_advise.teachers": {"conv": "row:t", "inv": "row:u"}}
    same = {"guides.a.teacher": "row:t", "guides.b.teacher": "row:t"}
    file = {"guides.logits.teacher": "runs/t"}
    every = {
        "one": one,
        "start": start,
        "two": two,
        "same": same,
        "file": file,
        "t": {},
        "u": {},
        "x": {"guides.l.t": "row:gone"},
    }
    assert teachers_of(every) == {"one": "t", "same": "t"}
    assert [family(name) for name in ("resnet18", "regnety_006", "rednet26", "efficientnet_b3")] == [
        "resnet", "regnety", "rednet", "efficientnet",
    ]  # fmt: skip
    assert families(["resnet18", "rednet26", "resnet50"]) == ["resnet", "rednet"]
