# SPDX-License-Identifier: Apache-2.0
"""What jsonargparse says of a value that a recipe cannot hold, in words of people who have never heard of it."""

import re
from difflib import get_close_matches

from ..errors import shortened
from ..keywords import QUOTES

EXPECTED = re.compile(r"Expected a (Literal\[.*?\]|tuple with \d+ elements|\w+)")
GIVEN = re.compile(r"G(?:ot|iven) value: (.*)")
IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "list": "a list in brackets",
    "dict": "a group of keys",
}
"""Types of Python, as people call them."""


def one_line(message: str) -> str:
    """One sentence that names the key first, then what it may hold, what it was given, and the nearest word."""
    message = message.replace("typing.", "").replace("<class '", "").replace("'>", "").replace("NoneType", "null")
    whole = " ".join(message.replace("Parser key", "recipe key").split())
    key, _, problem = whole.partition(": ")
    given = GIVEN.search(problem)
    valid = list(dict.fromkeys(word for kind in EXPECTED.findall(problem) for word in _in_words(kind)))
    if not given or not valid:
        return whole
    near = get_close_matches(given[1], valid, 1)
    either = f"{', '.join(valid[:-1])} or {valid[-1]}" if len(valid) > 1 else valid[0]
    quotes = QUOTES if "a word" in valid and re.fullmatch(r"True|False|[-+.\d].*|inf|nan", given[1]) else ""
    return f"{key} must be {either}, got {shortened(given[1])}{f'; did you mean {near[0]}?' if near else quotes}"


def _in_words(kind: str) -> list[str]:
    """A type, or each of the words that it allows."""
    if kind.startswith("Literal"):
        return [part.strip(" '") for part in kind.removeprefix("Literal[").removesuffix("]").split(",")]
    return [IN_WORDS.get(kind, kind.replace("tuple with", "a list of"))]
