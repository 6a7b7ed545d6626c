# SPDX-License-Identifier: Apache-2.0
"""Values against annotations: keywords of a recipe or a constructor, and objects read from JSON. One walk, `fit`."""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import MISSING, asdict, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from inspect import Parameter, signature
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import UserError, received, shortened

KINDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a word", (str,)),
    **dict.fromkeys((dict, Mapping), ("a group of keys", (Mapping,))),
    **dict.fromkeys((list, tuple, Sequence), ("a list in brackets", (list, tuple))),
    NoneType: ("null", (NoneType,)),
}
"""Annotation without its members -> its name in errors, and the types it accepts."""
QUOTES = "; a name that YAML reads as a number or as true or false needs quotes"
BITS = 63  # of the largest whole number that torch takes
NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
"""A number in a text: YAML reads 1e-3, and everything in quotes, as text."""
SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

Build = Callable[[str, type, Mapping[str, Any]], Any]  # key, dataclass and its keywords -> what stands for them


class Misfit(ValueError):
    """A value that its annotation does not accept; `key` says where it stands."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key or 'it'} {message}")
        self.key = key


class _OtherKind(Misfit):
    """A value that another choice of a union may accept."""


def check_keywords(owner: str, made: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Compare values with the annotations of a constructor, including nested dataclasses.

    Args:
        owner: the keys' prefix in a recipe, such as "train" or "guides.logits".
        made: the class, or its constructor.
        values: some of its keywords.

    Raises: UserError for null where a value is needed, a number that is not finite or beyond 64 bits, a value of
        another type, or a word that is not among the choices.
    """
    for name, value in values.items():
        check_value(f"{owner}.{name}", annotations(made).get(name, Any), value)


def check_fields(owner: str, made: Any) -> None:
    """Do the same for a dataclass object, at the beginning of its `__post_init__`."""
    check_keywords(owner, type(made), vars(made))


def check_value(key: str, kind: Any, value: Any) -> None:
    """Compare a value with an annotation. Raises: UserError, as `check_keywords`."""
    with _refused():
        fit(key, kind, value, check_keywords)


def made_parts(made: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords for a constructor, with its dataclasses built from their sections of a recipe."""
    built = {}
    for name, value in values.items():
        parts = [kind for kind in _choices(annotations(made).get(name, Any)) if is_dataclass(kind)]
        built[name] = parts[0](**value) if parts and isinstance(value, dict) else value  # type: ignore[operator]
    return built


def filled(
    place: str, made: Callable[..., Any], values: Mapping[str, Any], skip: Container[str] = ()
) -> dict[str, Any]:
    """Return the keywords of a constructor as plain values, with its defaults where `values` has none.

    A value is data: it is never taken for the name of a class, a module or a file.

    Args:
        place: the keys' prefix in a recipe, such as "train" or "guides.logits".
        made: the class.
        values: some of its keywords; those of its dataclasses are mappings.
        skip: names of arguments that no recipe sets.

    Raises: UserError for a value that its annotation does not accept, or a missing keyword without default.
    """
    kinds, defaults = annotations(made), {k: v for k, v in _defaults(made).items() if k not in skip}
    needed = [name for name, value in defaults.items() if value is MISSING and values.get(name) is None]
    if missing := [f"{place}.{name}" for name in needed if NoneType not in _choices(kinds.get(name, Any))]:
        raise UserError(f"the following arguments are required: {', '.join(missing)}")
    with _refused():
        complete = {}
        for name, default in defaults.items():
            value = values.get(name, default)
            if isinstance(value, Mapping) and isinstance(default, Mapping) and _parts(kinds.get(name, Any)):
                value = {**default, **value}
            complete[name] = fit(f"{place}.{name}", kinds.get(name, Any), value, filled, as_text=True)
        return complete


def leaf_keys(place: str, made: Callable[..., Any], skip: Container[str] = ()) -> Iterator[str]:
    """Yield the dotted keys of a constructor's keywords, and of the dataclasses among them."""
    for name in _defaults(made):
        if name not in skip:
            yield f"{place}.{name}"
            for part in _parts(annotations(made).get(name, Any)):
                yield from leaf_keys(f"{place}.{name}", part)


def rebuilt(kind: Any, content: Any, place: str = "") -> Any:
    """Return the value that JSON was written from: dataclasses from objects, tuples from lists, keys of any type.

    Args:
        kind: a dataclass, or an annotation of builtin types, mappings and dataclasses.
        content: as `json.loads` returns it; missing keys take the dataclass's defaults.
        place: of the content, for the error.

    Raises: ValueError naming the place for content of another type, numbers that are not finite or beyond 64 bits
        included; TypeError for a missing key.
    """
    return fit(place, kind, content, _from_json)


def _from_json(place: str, made: type, content: Mapping[str, Any]) -> Any:
    kinds, inside = annotations(made), f"{place}." if place else ""
    if unknown := sorted(content.keys() - kinds.keys()):
        raise Misfit(place, f"cannot hold {shortened(str(unknown[0]))}")
    return made(**{name: fit(f"{inside}{name}", kinds[name], value, _from_json) for name, value in content.items()})


def fit(key: str, kind: Any, value: Any, build: Build, as_text: bool = False) -> Any:
    """Return a value as an annotation has it: a float for an integer where one is meant, a tuple for a list.

    Args:
        key: where the value stands, for the error.
        kind: the annotation; one that is no builtin type, dataclass, union or choice accepts everything.
        value: what to fit.
        build: makes a dataclass's value from a mapping.
        as_text: read numbers, true and false in texts, too.

    Raises: Misfit.
    """
    shape, inner = get_origin(kind) or kind, get_args(kind)
    if value is None and (kind is Any or NoneType in _choices(kind)):
        return None
    if value is None:
        raise Misfit(key, "needs a value, got null")
    if shape in (Union, UnionType):
        return _one_of(key, kind, value, build, as_text)
    if as_text and isinstance(value, str) and shape in (int, float, Any) and NUMBER.fullmatch(value):
        value = _number(value)
    if as_text and isinstance(value, str) and shape is bool:
        value = SWITCH.get(value.lower(), value)
    if isinstance(value, float) and not math.isfinite(value):
        raise Misfit(key, f"must be a finite number, got {value}")
    if isinstance(value, int) and abs(value) >= 2**BITS:
        raise Misfit(key, f"is a number beyond {BITS} bits, got {shortened(str(value))}")
    if is_dataclass(shape):
        if not isinstance(value, Mapping | shape):
            raise _OtherKind(key, _expected(kind, value))
        return build(key, shape, value) if isinstance(value, Mapping) else value  # type: ignore[arg-type]
    if shape is Any and isinstance(value, Mapping | list | tuple):
        shape, inner = (dict, ()) if isinstance(value, Mapping) else (list, ())
    if shape is Literal:
        fits = value in inner
    elif shape in KINDS:
        fits = isinstance(value, KINDS[shape][1]) and (shape is bool or not isinstance(value, bool))
        fits = fits and (shape is not tuple or not inner or Ellipsis in inner or len(value) == len(inner))
    else:
        return value
    if not fits:
        raise _OtherKind(key, _expected(kind, value))
    if isinstance(value, Mapping):
        keys, members = inner or (str, Any)
        names = keys if keys in (int, float) else lambda name: name
        return {names(k): fit(f"{key}.{k}", members, v, build, as_text) for k, v in value.items()}
    if isinstance(value, list | tuple):
        kinds = inner if shape is tuple and inner and Ellipsis not in inner else repeat((inner or (Any,))[0])
        fitted = [fit(f"{key}[{i}]", *each, build, as_text) for i, each in enumerate(zip(kinds, value, strict=False))]
        return tuple(fitted) if shape is tuple else fitted
    return float(value) if shape is float else value


def _one_of(key: str, kind: Any, value: Any, build: Build, as_text: bool) -> Any:
    """Return the value as the first choice of a union that accepts it has it."""
    deeper = None
    for choice in _choices(kind):
        if choice is not NoneType:
            try:
                return fit(key, choice, value, build, as_text)
            except _OtherKind as misfit:
                deeper = misfit if misfit.key != key else deeper
    raise deeper or _OtherKind(key, _expected(kind, value))


def _expected(kind: Any, value: Any) -> str:
    """Say what an annotation accepts, in place of a value."""
    words = list(dict.fromkeys(word for choice in _choices(kind) for word in _called(choice)))
    near = get_close_matches(str(value), words, 1)
    quotes = QUOTES if "a word" in words and isinstance(value, int | float) else ""
    meant = f"; did you mean {near[0]}?" if near else quotes
    either = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    return f"must be {either}, got {received(value)}{meant}"


def _called(kind: Any) -> Iterable[str]:
    """Describe the values that an annotation accepts; of a choice each word."""
    shape, inner = get_origin(kind) or kind, get_args(kind)
    if shape is Literal:
        return map(str, inner)
    if shape is tuple and inner and Ellipsis not in inner:
        return [f"a list of {len(inner)} elements"]
    return [KINDS[shape][0] if shape in KINDS else KINDS[dict][0] if is_dataclass(kind) else str(kind)]


@contextmanager
def _refused() -> Iterator[None]:
    """Raise a misfit within the block as an error of the user's."""
    try:
        yield
    except Misfit as misfit:
        raise UserError(str(misfit)) from misfit


def _defaults(made: Callable[..., Any]) -> dict[str, Any]:
    """Return keyword -> its default as a plain value for the caller to change; MISSING where there is none."""
    if is_dataclass(made):
        every = {field.name: (field.default, field.default_factory) for field in fields(made)}
        values = {name: value if make is MISSING else make() for name, (value, make) in every.items()}
    else:
        values = {name: parameter.default for name, parameter in signature(made).parameters.items()}
    return {name: MISSING if value is Parameter.empty else _plain(value) for name, value in values.items()}


def _plain(default: Any) -> Any:
    if is_dataclass(default) and not isinstance(default, type):
        return asdict(default)
    return default if default is MISSING else deepcopy(default)


@cache
def annotations(made: Callable[..., Any]) -> dict[str, Any]:
    """Return keyword -> annotation of a constructor."""
    return get_type_hints(made.__init__ if isinstance(made, type) else made)  # type: ignore[misc]


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _parts(kind: Any) -> list[Any]:
    """Return the dataclasses among an annotation's choices."""
    return [choice for choice in _choices(kind) if is_dataclass(choice)]


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
