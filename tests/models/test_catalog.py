# SPDX-License-Identifier: Apache-2.0
"""`viticulture models` says of every student what it costs and what it is for."""

import json

import pytest
import timm
import torch

import viticulture
from viticulture.models.catalog import COSTS, counted_or_none, entries, measured
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student, fitting_patch, matching


def test_every_student_of_ours_is_counted_and_has_a_purpose() -> None:
    """Fails for a new student that is not in costs.json (python docs/reference.py), or that no family describes."""
    listed = entries(matching(), most=0)
    assert {one.name for one in listed} == set(json.loads(COSTS.read_text(encoding="utf-8")))
    assert all(one.parameters and one.macs and one.side and one.purpose for one in listed)


def test_what_is_counted_is_what_is_built() -> None:
    """Against a network on real tensors: fails if a network without weights has other sizes, or if the numbers that
    ship are of other code (python docs/reference.py)."""
    side, parameters, macs = measured("dhvt_nano")
    data_spec = DataSpec(tuple("0123456789"), (side, side), (0.5,) * 3, (0.5,) * 3)  # type: ignore[arg-type]
    student = create_student("dhvt_nano", data_spec, fitting_patch("dhvt_nano", data_spec.image_size))
    assert parameters == sum(weight.numel() for weight in student.parameters())
    (kept,) = entries(["dhvt_nano"], most=0)
    assert (kept.side, kept.parameters, kept.macs) == (side, parameters, macs)


@pytest.mark.slow
def test_the_numbers_that_ship_are_those_of_the_code() -> None:
    """Fails if any student was changed and the file was not: python docs/reference.py."""
    assert {name: list(measured(name)) for name in matching()} == json.loads(COSTS.read_text(encoding="utf-8"))


def test_students_of_timm_are_counted_where_they_are_few() -> None:
    """Fails where hundreds are built while a person waits, or where one that cannot be counted ends the list."""
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
