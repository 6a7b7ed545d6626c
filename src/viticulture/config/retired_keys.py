# SPDX-License-Identifier: Apache-2.0
"""Keys that recipes once had and that would now mean something else: refused, with what is written today."""

from typing import Any

from ..errors import UserError


def refuse_retired(values: dict[str, Any]) -> None:
    """Compare raw values of a recipe, whose sections are all there, with what was once written.

    A key of old that says null is left out: it meant what leaving it out means.

    Raises: UserError naming the key and what to write.
    """
    for name, entry in values["guides"].items():
        if entry.get("class", name) != "attention_distillation":
            continue
        layers = entry.pop("layers", None)
        if layers is not None:
            blocks = [layer - 1 for layer in layers] if _numbers(layers) else "[...]"
            raise UserError(
                f"guides.{name}.layers counted from 1, and blocks are counted from 0 everywhere: write "
                f"guides.{name}.blocks: {blocks} for {layers}"
            )
    method = values["method"]
    if _numbers([method.get("local_crops")]) or "local_size" in method:
        count, size = method.get("local_crops", 8), method.get("local_size")
        size_too = f", size: {size}" if size is not None else ""
        raise UserError(
            "method.local_crops holds count and size, and there is no local_size: write "
            f"local_crops: {{count: {count}{size_too}}}"
        )


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) for number in value)
