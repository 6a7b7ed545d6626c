# SPDX-License-Identifier: Apache-2.0
"""Bad commands: nasty values for every key, option and word."""

import random
from functools import cache
from pathlib import Path
from typing import Any

from viticulture.command import ALIASES, COMMANDS, HELP, SHORT, WITH_TABLE, Parser
from viticulture.config.load import load_config

VALUES = (
    *("", " ", "null", "~", ".nan", "nan", ".inf", "-.inf", "inf", "-1", "0", "0.0", "-0.0", "1e-320", "1e308"),
    *("18446744073709551616", "99999999999999999999", "-9223372036854775809", "0x10", "1_000", "01", "1e3", "3.7"),
    *(
        "1e999",
        "abc",
        "True",
        "[]",
        "{}",
        "[1, 2]",
        "[[1, 2], [3]]",
        "{a: 1}",
        "{a: {b: {c: 1}}}",
        "[null]",
        "{1: 2}",
        "? [a]",
    ),
    *("\x1b[31mred", "a\nb", "a\rb", "#x", "a # b", "é", "日本", "\udcff", "x" * 5000, "[" * 3000, "=cmd()", "%s%n"),
    *("../..", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "nowhere.yaml", "*", "~root", "hf:", "hf:a/b"),
    *("!!python/object/apply:os.system [id]", "&a [*a]", "<<: {a: 1}", "'", '"', "`id`", "row:x", "-", "--", "default"),
    *("vit_nano", "resnet18", "cifar100", "digits", "mae", "1.5.2", "2026-01-01", "12:30:45", "!!binary aGk="),
)

SMALL = (
    *("--recipe", "default/small-images", "--student", "vit_nano", "--image-size", "16", "--epochs", "1"),
    *("--schedule.warmup_epochs", "0", "--batch-size", "10"),
    *("--student.options", "{embed_dim: 16, depth: 1, num_heads: 2}"),
)
"""The smallest training there is."""


def keys() -> list[str]:
    """Every key of a recipe, nested ones by dots."""
    names: list[str] = []

    def walk(prefix: str, values: dict[str, Any]) -> None:
        for key, value in values.items():
            name = f"{prefix}{key}"
            names.append(name)
            if isinstance(value, dict):
                walk(f"{name}.", value)

    for name in ("default/small-images", "bootstrap/digits", "mae/cifar100"):
        walk("", load_config(name, {}).values)
    return sorted(set(names))


def command(draw: random.Random, known: list[str], place: dict[str, str]) -> tuple[list[str], Path | None]:
    """A command with one to three mistakes in it, and the folder that it is to make.

    Args:
        draw: the dice.
        known: keys of a recipe.
        place: names of a folder of images (`data`), of a finished run (`run`), and of a free place (`out`).
    """
    if draw.random() < 0.65:
        words = ["train", place["data"], *SMALL, "--out", place["out"]]
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            kind = draw.random()
            if kind < 0.7:
                words += [f"--{draw.choice(known)}", draw.choice(VALUES)]
            elif kind < 0.85:
                words += [draw.choice([*SHORT, *options("train")]), draw.choice(VALUES)]
            elif kind < 0.95:
                words[1] = draw.choice(VALUES)
            else:
                words.insert(draw.randrange(1, len(words)), draw.choice(VALUES))
        return words, Path(place["out"])
    verb = draw.choice([verb for verb in (*COMMANDS, *ALIASES) if verb not in ("train", "demo")])
    words = [verb, *(["resume"] if verb == "compare" and draw.random() < 0.2 else [])]
    if draw.random() < 0.7:
        words.append(place["run"] if verb not in ("compare", "data", "models") else place["data"])
    for _ in range(draw.randrange(0, 4)):
        words.append(draw.choice(VALUES))
    for _ in range(draw.randrange(0, 3)):
        words += [draw.choice(options(verb)), draw.choice((*VALUES, place["data"], place["run"]))]
    if verb == "compare":
        words += ["--out", place["out"], "--budget", draw.choice(("1s", *VALUES))]
    return words, None


@cache
def options(verb: str) -> list[str]:
    """Every option of a verb, of a table's rows too, but for help."""
    name = ALIASES.get(verb, verb)
    functions = [COMMANDS[name], *([WITH_TABLE[name]] if name in WITH_TABLE else [])]
    known = {option for function in functions for option in Parser(name, function).options}
    return sorted(known - set(HELP)) or ["--out"]
