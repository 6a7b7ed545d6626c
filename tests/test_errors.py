# SPDX-License-Identifier: Apache-2.0
"""What a person reads of a mistake, whatever the names in it hold."""

import numpy as np
import torch

from viticulture.errors import as_named, received, some, unknown


def test_a_name_with_a_line_break_is_seen_to_be_one_name() -> None:
    """Catches: a class called `a<newline>error: b` whose error looks like two lines, or one that colors a terminal."""
    broken = "dog\nerror: all is lost"
    names = ["cat", broken, "red\x1b[31m"]
    for told in (some(names), str(unknown("class", "zebra", names)), str(unknown("class", "dog\nerror: all", names))):
        assert "\n" not in told
        assert "\x1b" not in told
        assert repr(broken) in told
    assert some(["cat", "größe, 3"]) == "cat, größe, 3"


def test_what_was_received_is_told_on_a_line() -> None:
    """Catches: the numbers of a tensor, a repr of many lines, a path that differs from the one that was named."""
    assert received(torch.zeros(3, 4)) == "Tensor [3, 4] of torch.float32"
    assert received((np.zeros((2, 2), np.uint8), 3)) == "(ndarray [2, 2] of uint8, 3)"
    assert received({"a": torch.zeros(2)}) == "{'a': Tensor [2] of torch.float32}"
    assert received("a\nb") == r"'a\nb'"
    assert received(np.float64(2)) == repr(np.float64(2))
    assert [as_named(word) for word in ("https:/host/a", "/a/b", "a:b/c")] == ["https://host/a", "/a/b", "a:b/c"]
