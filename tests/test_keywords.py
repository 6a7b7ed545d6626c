# SPDX-License-Identifier: Apache-2.0
"""Values from JSON have their original types."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import pytest

from viticulture.keywords import rebuilt


@dataclass(frozen=True)
class Part:
    name: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    best: Part | None
    sweep: dict[float, tuple[int, ...]]
    by_name: Mapping[str, Part] = field(default_factory=dict)


def test_a_result_is_read_with_its_types() -> None:
    kept = Whole((Part("a", (0.0, 1.0)), Part("b")), None, {0.5: (1, 2)}, {"c": Part("c")})
    assert rebuilt(Whole, json.loads(json.dumps(asdict(kept)))) == kept
    assert rebuilt(Whole, {"parts": [], "best": {"name": "d"}, "sweep": {}}) == Whole((), Part("d"), {})


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"parts": 3, "best": None, "sweep": {}},
        {"parts": [], "best": None, "sweep": {"x": []}},
        {"parts": [{"name": "a", "interval": [1.0]}], "best": None, "sweep": {}},
        {"parts": [], "best": None, "sweep": {}, "other": 1},
        {"parts": []},
        {"parts": [{"name": 3}], "best": None, "sweep": {}},
        {"parts": [{"name": "a", "interval": [0.0, "many"]}], "best": None, "sweep": {}},
        {"parts": [{"name": "a", "interval": [0.0, float("nan")]}], "best": None, "sweep": {}},
        {"parts": [], "best": None, "sweep": {0.5: [2**70]}},
        {"parts": [], "best": None, "sweep": {0.5: [True]}},
        {"parts": None, "best": None, "sweep": {}},
        {"parts": [], "best": "a", "sweep": {}},
    ],
    ids=[
        *("no object", "no list", "no number", "an end too few", "a key too many", "a key too few"),
        *("a number as a word", "a word as a number", "nan", "beyond 64 bits", "true as a number", "null", "no part"),
    ],
)
def test_content_of_another_form_is_refused(content: object) -> None:
    with pytest.raises((TypeError, LookupError, ValueError, AttributeError)):
        rebuilt(Whole, content)
