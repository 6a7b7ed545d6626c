# SPDX-License-Identifier: Apache-2.0
"""What a person reads of a mistake, whatever the names in it hold."""

from viticulture.errors import some, unknown


def test_a_name_with_a_line_break_is_seen_to_be_one_name() -> None:
    """Catches: a class called `a<newline>error: b` whose error looks like two lines, or one that colors a terminal."""
    broken = "dog\nerror: all is lost"
    names = ["cat", broken, "red\x1b[31m"]
    for told in (some(names), str(unknown("class", "zebra", names)), str(unknown("class", "dog\nerror: all", names))):
        assert "\n" not in told
        assert "\x1b" not in told
        assert repr(broken) in told
    assert some(["cat", "größe, 3"]) == "cat, größe, 3"
