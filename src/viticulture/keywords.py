# SPDX-License-Identifier: Apache-2.0
"""Values against the annotations of what takes them: keywords of a constructor, and objects that JSON has kept."""

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import MISSING, asdict, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, signature
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import UserError, received, shortened

PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a word", (str,)),
    dict: ("keywords and values", (dict,)),
    list: ("a list", (list, tuple)),
    tuple: ("a list", (list, tuple)),
}
"""Annotation, but for what it holds -> its name in errors, and the types that are meant."""
QUOTES = "; a name that YAML reads as a number or as true or false stands in quotes"
BITS = 63
"""Of the largest whole number that torch takes."""
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
"""A number in a text: YAML reads 1e-3, and whatever stands in quotes, as one."""
SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
IN_A_RECIPE: dict[Any, str] = {
    **{kind: words for kind, (words, _) in PLAIN.items()},
    **dict.fromkeys((dict, Mapping), "a group of keys"),
    **dict.fromkeys((list, tuple, Sequence), "a list in brackets"),
    NoneType: "null",
}
"""Annotation, but for its members -> what an error about a recipe calls it."""


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


def filled(
    place: str, made: Callable[..., Any], values: Mapping[str, Any], given: Container[str] = ()
) -> dict[str, Any]:
    """Return the keywords of a constructor as plain values, with its defaults where `values` has none.

    A value is data. Whatever it holds, it is never taken for the name of a class, a module or a file.

    Args:
        place: the keys' prefix in a recipe, such as "train" or "guides.logits".
        made: the class.
        values: some of its keywords; those of its dataclasses are mappings.
        given: names of arguments that no recipe sets.

    Raises: UserError for a value that no annotation takes, or a keyword without default that is missing.
    """
    kinds, defaults = annotations(made), {k: v for k, v in _defaults(made).items() if k not in given}
    needed = [name for name, value in defaults.items() if value is MISSING and values.get(name) is None]
    if missing := [f"{place}.{name}" for name in needed if NoneType not in _choices(kinds.get(name, Any))]:
        raise UserError(f"the following arguments are required: {', '.join(missing)}")
    return {
        name: _fitted(f"{place}.{name}", kinds.get(name, Any), values.get(name, default), default)
        for name, default in defaults.items()
    }


def _defaults(made: Callable[..., Any]) -> dict[str, Any]:
    """Keyword -> its default as plain values, for the caller to keep; MISSING where it has none."""
    if is_dataclass(made):
        every = {field.name: (field.default, field.default_factory) for field in fields(made)}
        known = {name: value if make is MISSING else make() for name, (value, make) in every.items()}
    else:
        known = {name: parameter.default for name, parameter in signature(made).parameters.items()}
    return {name: MISSING if value is Parameter.empty else _plain(value) for name, value in known.items()}


def _plain(default: Any) -> Any:
    if is_dataclass(default) and not isinstance(default, type):
        return asdict(default)
    return default if default is MISSING else deepcopy(default)


class _Misfit(ValueError):
    """A value, or one of its members, that its annotation does not take."""

    def __init__(self, kind: Any, value: Any) -> None:
        self.kind, self.value = kind, value
        super().__init__()


def _fitted(key: str, kind: Any, value: Any, default: Any) -> Any:
    """A recipe's value as its annotation has it: an integer where a float is meant is one, so is a number in a text."""
    parts = [choice for choice in _choices(kind) if is_dataclass(choice)]
    if parts and isinstance(value, Mapping):
        own = default if isinstance(default, Mapping) else {}
        return filled(key, parts[0], {**own, **value})  # type: ignore[arg-type]
    try:
        return _fit(kind, value)
    except _Misfit as misfit:
        words = [word for choice in _choices(misfit.kind) for word in _called(choice)]
        *others, last = dict.fromkeys(words)
        near = get_close_matches(str(misfit.value), words, 1)
        quotes = QUOTES if "a word" in words and isinstance(misfit.value, int | float) else ""
        meant = f"; did you mean {near[0]}?" if near else quotes
        either = f"{', '.join(others)} or {last}" if others else last
        raise UserError(f'recipe key "{key}" must be {either}, got {shortened(str(misfit.value))}{meant}') from misfit


def _called(kind: Any) -> list[str]:
    """Describe the values that an annotation takes; of a choice each word."""
    shape, inner = get_origin(kind) or kind, get_args(kind)
    if shape is Literal:
        return [str(word) for word in inner]
    if shape is tuple and Ellipsis not in inner:
        return [f"a list of {len(inner)} elements"]
    return [IN_A_RECIPE.get(shape, "keywords" if is_dataclass(kind) else str(kind))]


def _fit(kind: Any, value: Any) -> Any:
    """A value as one of an annotation's choices takes it. Null passes: `check_value` says where a value is needed."""
    shape = get_origin(kind) or kind
    if value is None:
        return None
    if shape in (Union, UnionType):
        for choice in get_args(kind):
            try:
                return _fit(choice, value)
            except _Misfit as misfit:
                inside = misfit.value is not value and len(_choices(kind)) == 2
                if inside and NoneType in get_args(kind):
                    raise
        raise _Misfit(kind, value)
    if shape in (list, tuple, Sequence, dict, Mapping):
        return _members_fit(kind, shape, value)
    if shape is Literal:
        fits = value in get_args(kind)
    elif shape in (int, float) and isinstance(value, str) and NUMBER.fullmatch(value):
        number = _number(value)
        return float(number) if shape is float else _fit(kind, number)
    elif shape is bool and isinstance(value, str):
        value = SWITCH.get(value.lower(), value)
        fits = isinstance(value, bool)
    elif shape is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if fits and abs(value) < 2**1000 else value
    elif shape is Any:
        return _numbers(value)
    else:
        fits = shape not in PLAIN or (isinstance(value, shape) and not (shape is int and isinstance(value, bool)))
        fits = fits and shape is not NoneType and not is_dataclass(shape)
    if not fits:
        raise _Misfit(kind, value)
    return value


def _members_fit(kind: Any, shape: Any, value: Any) -> Any:
    inner = get_args(kind)
    if shape in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _Misfit(kind, value)
        return {name: _fit(inner[1] if inner else Any, member) for name, member in value.items()}
    fixed = shape is tuple and inner and Ellipsis not in inner
    if not isinstance(value, list | tuple) or (fixed and len(value) != len(inner)):
        raise _Misfit(kind, value)
    members = [_fit(*each) for each in zip(_of_members(kind, value) if inner else repeat(Any), value, strict=False)]
    return tuple(members) if shape is tuple else members


def _numbers(value: Any) -> Any:
    """A value of any type, its texts that are numbers as these."""
    if isinstance(value, Mapping):
        return {name: _numbers(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(member) for member in value]
    return _number(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def rebuilt(kind: Any, content: Any, place: str = "") -> Any:
    """What JSON made of a value of this type as it was: dataclasses from objects, tuples from lists, keys of any type.

    Args:
        kind: a dataclass, or an annotation of builtin types, mappings and dataclasses.
        content: as `json.loads` returns it; keys that are missing are the dataclass's defaults.
        place: of the content, for the error.

    Raises: ValueError naming the place for content of another type, a number that is none (nan, infinity, beyond 64
        bits) among it; TypeError for a key that is missing or that the dataclass does not have.
    """
    shape, inner = get_origin(kind) or kind, get_args(kind)
    if shape in (Union, UnionType):
        kinds_of_value = [part for part in inner if part is not NoneType]
        if content is None and len(kinds_of_value) < len(inner):
            return None
        for part in kinds_of_value[:-1]:
            with suppress(ValueError):
                return rebuilt(part, content, place)
        return rebuilt(kinds_of_value[-1], content, place)
    if is_dataclass(shape) and isinstance(content, Mapping):
        kinds = annotations(shape)  # type: ignore[arg-type]
        if unknown := sorted(content.keys() - kinds.keys()):
            raise ValueError(f"{place or 'it'} cannot hold {shortened(str(unknown[0]))}")
        inside = f"{place}." if place else ""
        parts = {name: rebuilt(kinds[name], value, f"{inside}{name}") for name, value in content.items()}
        return shape(**parts)  # type: ignore[operator]
    if shape in (tuple, list, Sequence) and isinstance(content, list | tuple):
        if not inner:
            return content
        if shape is tuple and inner[-1] is not Ellipsis and len(content) != len(inner):
            raise ValueError(f"{place} must have {len(inner)} members, got {len(content)}")
        each = zip(_of_members(kind, content), content, strict=False)
        members = [rebuilt(part, value, f"{place}[{i}]") for i, (part, value) in enumerate(each)]
        return tuple(members) if shape is tuple else members
    if shape in (dict, Mapping) and isinstance(content, Mapping):
        return {inner[0](k): rebuilt(inner[1], v, f"{place}.{k}") for k, v in content.items()} if inner else content
    if shape is Literal:
        fits = content in inner
    elif shape in (bool, int, float, str):
        fits = isinstance(content, PLAIN[shape][1]) and (shape is bool or not isinstance(content, bool))
    else:
        fits = not (is_dataclass(shape) or shape in (tuple, list, Sequence, dict, Mapping, NoneType))
    if not fits or (isinstance(content, float) and not math.isfinite(content)) or _is_beyond(content):
        raise ValueError(f"{place or 'it'} cannot be {received(content)}")
    return content


def _is_beyond(content: Any) -> bool:
    return isinstance(content, int) and abs(content) >= 2**BITS


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
            raise UserError(f"{key} must be {expected}, got {received(value)}{hint}")
    lists = [choice for choice in given if get_origin(choice) in (list, tuple)]
    if len(lists) == 1 and isinstance(value, list | tuple):
        _check_members(key, lists[0], value)
    parts = [choice for choice in given if isinstance(choice, type) and is_dataclass(choice)]
    if len(parts) == len(given) > 0 and not isinstance(value, (dict, *parts)):
        raise UserError(f"{key} must hold keywords, got {received(value)}")
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
    return inner if get_origin(kind) is tuple and inner[-1] is not Ellipsis else repeat(inner[0], len(content))


def _check_numbers(key: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_numbers(key, inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key} must be a finite number, got {value}")
    elif _is_beyond(value):
        raise UserError(f"{key} is a number beyond {BITS} bits, got {value}")
