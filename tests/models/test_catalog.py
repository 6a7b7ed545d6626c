# SPDX-License-Identifier: Apache-2.0
"""`viticulture models` lists every student with its costs and purpose."""

import json

import pytest
import timm
import torch

import viticulture
from viticulture.models.catalog import COSTS, counted_or_none, entries, measured
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student, fitting_patch, matching


def test_every_student_of_the_package_has_costs_and_a_purpose() -> None:
    """A new student needs `python docs/reference.py` and a family."""
    listed = entries(matching(), most=0)
    assert {one.name for one in listed} == set(json.loads(COSTS.read_text(encoding="utf-8")))
    assert all(one.parameters and one.macs and one.side and one.purpose for one in listed)


def test_costs_are_those_of_the_built_network() -> None:
    side, parameters, macs = measured("dhvt_nano")
    data_spec = DataSpec(tuple("0123456789"), (side, side), (0.5,) * 3, (0.5,) * 3)  # type: ignore[arg-type]
    student = create_student("dhvt_nano", data_spec, fitting_patch("dhvt_nano", data_spec.image_size))
    assert parameters == sum(weight.numel() for weight in student.parameters())
    (kept,) = entries(["dhvt_nano"], most=0)
    assert (kept.side, kept.parameters, kept.macs) == (side, parameters, macs)


@pytest.mark.slow
def test_shipped_costs_are_current() -> None:
    """After changing a student: python docs/reference.py."""
    assert {name: list(measured(name)) for name in matching()} == json.loads(COSTS.read_text(encoding="utf-8"))


def test_costs_of_timms_students_are_computed_for_short_lists() -> None:
    table = viticulture.models("vit_tiny_patch16_224")
    name, side, parameters, macs, _ = table.rows[0]
    known = sum(weight.numel() for weight in timm.create_model(str(name), num_classes=10).parameters())
    assert (side, parameters) == (224, known / 1e6)
    assert isinstance(macs, float)
    assert macs == pytest.approx(1257, rel=0.01), "DeiT: 1.3 G multiply-adds with the head of 1,000 classes"
    many = viticulture.models("*tiny*")
    assert len(many.rows) > 20
    assert "narrower" in many.note
    assert all(row[2] is None for row in many.rows if str(row[0]).startswith("convnext"))
    with torch.device("meta"):
        assert counted_or_none("no such student") is None
