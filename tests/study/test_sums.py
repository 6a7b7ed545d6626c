# SPDX-License-Identifier: Apache-2.0
"""Sums of methods beside their parts, students beside their teachers."""

import pytest

from viticulture.study.conclude.sums import sums
from viticulture.study.conclude.teaching import families, family, teachers_of


def test_a_sums_excess_is_its_gain_without_its_parts_gains_seed_by_seed() -> None:
    """By hand; seed 2 is missing of a part. Catches: means before differences, a seed that not all have, accuracies
    for gains, a name with a plus whose parts are no candidates, the baseline counted as a part."""
    accuracies = {
        "labels": {0: 0.5, 1: 0.4, 2: 0.3},
        "a": {0: 0.6, 1: 0.6, 2: 0.9},
        "b": {0: 0.45, 1: 0.5},
        "a + b": {0: 0.65, 1: 0.6, 2: 0.9},
        "a + b + a": {1: 0.9},
        "a + c": {0: 1.0},
    }
    found = {one.name: one for one in sums(accuracies, "labels")}
    assert list(found) == ["a + b", "a + b + a"]
    assert found["a + b"].gain == pytest.approx((0.15, 0.2))
    assert found["a + b"].parts_gain == pytest.approx((0.05, 0.3))
    assert found["a + b"].excess == pytest.approx((0.1, -0.1))
    assert found["a + b + a"].excess == pytest.approx((0.5 - 0.2 - 0.1 - 0.2,))
    assert sums(accuracies, "other") == []


def test_students_of_one_teacher_are_paired_with_it() -> None:
    """Catches: what a student starts from taken for a teacher, students of two, a teacher that is no candidate."""
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
