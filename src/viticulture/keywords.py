# SPDX-License-Identifier: Apache-2.0
"""Values against the annotations of what takes them: keywords of a constructor, and objects that JSON has kept."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import UserError, described

PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a word", (str,)),
    dict: ("keywords and values", (dict,)),
    list: ("a list", (list, tuple)),
    tuple: ("a list", (list, tuple)),
}
"""Annotation, but for what it holds -> how a person says it, and the types that are meant."""
QUOTES = "; a name that YAML reads as a number or as true or false stands in quotes"
BITS = 63
"""Of the largest whole number that torch takes."""


def check_keywords(owner: str, made: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Compare values with the annotations of a constructor, dataclasses among them too.

    Args:
        owner: the keys' prefix in a recipe, such as "train" or "guides.logits".
        made: the class, or its constructor.
        values: some of its keywords.

    Raises: UserError for null where a value is needed, a number that is none (nan, infinity, beyond 64 bits), a value
        of another type, or a word that is no choice.
    """
    kinds = annotations(made)
    for name, value in values.items():
        check_value(f"{owner}.{name}", kinds.get(name, Any), value)


def check_fields(owner: str, made: Any) -> None:
    """The same for an object of a dataclass, at the beginning of its `__post_init__`."""
    check_keywords(owner, type(made), vars(made))


def made_parts(made: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords for a constructor, with its dataclasses made out of their sections of a recipe."""
    return {name: _made(annotations(made).get(name, Any), value) for name, value in values.items()}


def rebuilt(kind: Any, content: Any) -> Any:
    """What JSON made of a value of this type as it was: dataclasses from objects, tuples from lists, keys of any type.

    Args:
        kind: a dataclass, or an annotation of builtin types, mappings and dataclasses.
        content: as `json.loads` returns it; keys that are missing are the dataclass's defaults.

    Raises: TypeError, KeyError, ValueError or AttributeError for content of another form.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        kinds = annotations(kind)  # type: ignore[arg-type]
        return kind(**{name: rebuilt(kinds[name], value) for name, value in content.items()})  # type: ignore[operator]
    if origin in (Union, UnionType):
        return None if content is None else rebuilt(next(part for part in inner if part is not NoneType), content)
    if origin is tuple:
        return tuple(rebuilt(part, value) for part, value in zip(_of_members(kind, content), content, strict=True))
    if origin in (dict, Mapping):
        return {inner[0](key): rebuilt(inner[1], value) for key, value in content.items()}
    return content


@cache
def annotations(made: Callable[..., Any]) -> dict[str, Any]:
    """Keyword -> annotation of a constructor."""
    return get_type_hints(made.__init__ if isinstance(made, type) else made)  # type: ignore[misc]


def _made(kind: Any, value: Any) -> Any:
    parts = [choice for choice in _choices(kind) if is_dataclass(choice)]
    return parts[0](**value) if parts and isinstance(value, dict) else value  # type: ignore[operator]


def _choices(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the one annotation itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def check_value(key: str, kind: Any, value: Any) -> None:
    """Compare a value with an annotation. Raises: UserError, as `check_keywords`, that calls it by its key."""
    choices = _choices(kind)
    if value is None:
        if Any not in choices and NoneType not in choices:
            raise UserError(f"{key} needs a value, got null")
        return
    _check_numbers(key, value)
    given = [choice for choice in choices if choice is not NoneType]
    shapes = [get_origin(choice) or choice for choice in given]
    if shapes == [Literal] and value not in (words := get_args(given[0])):
        *others, last = map(str, words)
        raise UserError(f"{key} must be {', '.join(others)} or {last}, got {value!r}")
    if all(shape in PLAIN for shape in shapes):
        types = {fit for shape in shapes for fit in PLAIN[shape][1]}
        if not isinstance(value, tuple(types)) or (isinstance(value, bool) and bool not in types):
            hint = QUOTES if str in types and isinstance(value, int | float) else ""
            expected = " or ".join(PLAIN[shape][0] for shape in shapes)
            raise UserError(f"{key} must be {expected}, got {described(value)}{hint}")
    lists = [choice for choice in given if get_origin(choice) in (list, tuple)]
    if len(lists) == 1 and isinstance(value, list | tuple):
        _check_members(key, lists[0], value)
    parts = [choice for choice in given if isinstance(choice, type) and is_dataclass(choice)]
    if len(parts) == len(given) > 0 and not isinstance(value, (dict, *parts)):
        raise UserError(f"{key} must hold keywords, got {described(value)}")
    for choice in parts:
        if isinstance(value, dict):
            check_keywords(key, choice, value)


def _check_members(key: str, kind: Any, value: Sequence[Any]) -> None:
    """What a list holds, as `check_value`; how many it should hold is for who takes it to say."""
    for i, (item, member) in enumerate(zip(_of_members(kind, value), value, strict=False)):
        check_value(f"{key}[{i}]", item, member)


def _of_members(kind: Any, content: Sequence[Any]) -> Iterable[Any]:
    """The annotations of what a list or tuple holds, in its places."""
    inner = get_args(kind)
    return repeat(inner[0], len(content)) if get_origin(kind) is list or inner[-1] is Ellipsis else inner


def _check_numbers(key: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_numbers(key, inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} must be a finite number, got {value}")
    elif isinstance(value, int) and abs(value) >= 2**BITS:
        raise UserError(f"{key} is a number beyond {BITS} bits, got {value}")
