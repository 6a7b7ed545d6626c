# SPDX-License-Identifier: Apache-2.0
"""Error messages, whatever the names in them hold."""

import numpy as np
import torch

from viticulture.errors import as_named, received, some, unknown


def test_a_name_with_a_line_break_is_printed_as_one() -> None:
    broken = "dog\nerror: all is lost"
    names = ["cat", broken, "red\x1b[31m"]
    for told in (some(names), str(unknown("class", "zebra", names)), str(unknown("class", "dog\nerror: all", names))):
        assert "\n" not in told
        assert "\x1b" not in told
        assert repr(broken) in told
    assert some(["cat", "größe, 3"]) == "cat, größe, 3"


def test_values_are_printed_on_one_line() -> None:
    assert received(torch.zeros(3, 4)) == "Tensor [3, 4] of torch.float32"
    assert received((np.zeros((2, 2), np.uint8), 3)) == "(ndarray [2, 2] of uint8, 3)"
    assert received({"a": torch.zeros(2)}) == "{'a': Tensor [2] of torch.float32}"
    assert received("a\nb") == r"'a\nb'"
    assert received(np.float64(2)) == repr(np.float64(2))
    assert [as_named(word) for word in ("https:/host/a", "/a/b", "a:b/c")] == ["https://host/a", "/a/b", "a:b/c"]
