# SPDX-License-Identifier: Apache-2.0
"""An ONNX file that takes a whole image and prepares it like `predict`.

    pixels [h, w, channels] uint8, upright, of any size  ->  logits [1, C]

The steps are those of the cache and of evaluation: the whole image is resized to S x S, cropped and resized, and its
colors are normalized; both resizes are antialiased, columns first, then rows, rounded to uint8 in between, like
Pillow's. Two differences remain: decoding (`predict` decodes large JPEGs at a fraction of their size, which is faster
and within a few gray levels), and torch's integer kernel, by which a value may differ by one.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from onnx.compose import add_prefix, merge_models
from onnx.parser import parse_model

from ...data.image_settings import ImageSettings
from ...models.data_spec import DataSpec

RESIZE = 'mode = "{mode}", antialias = 1, cubic_coeff_a = -0.5, exclude_outside = 1'

FULL = """
  original = Shape <start = 0, end = 2> (pixels)
  original_float = Cast <to = 11> (original)
  width_first = Gather (original_float, swap)
  scaled = Mul (width_first, sides_of_input)
  required = Div (scaled, sides_swapped)
  required_rounded = Round (required)
  required_pixels = Cast <to = 7> (required_rounded)
  full = Max (original, required_pixels)"""
"""Height and width of an image that is not cropped (`data.fit.Fit.size`)."""

PAD = """
  missing = Sub (full, original)
  before = Div (missing, twice)
  after = Sub (missing, before)
  around = Concat <axis = 0> (before, zero, after, zero)
  numbers = Cast <to = 6> (pixels)
  above = Sub (numbers, fill)
  framed = Pad (above, around)
  padded = Add (framed, fill)"""
"""That image, with the fill's color around it."""

FITS = {"crop": ("", "pixels", "sides"), "stretch": (FULL, "pixels", "full"), "pad": (FULL + PAD, "padded", "sides")}
"""`images.fit` -> first steps, the image that is resized, the sides that define the crop."""

EXACT = """
  reach = Mul (target, smallest)
  box = Div (reach, extents)
  rest = Sub (unit, box)
  margin = Div (rest, two)"""
"""The box of a centered part and what is before it, as shares of the sides."""

WHOLE_PIXELS = """
  shrunk_any = Div (extents, smallest)
  shrunk_safe = Add (shrunk_any, tiny)
  shrunk = Floor (shrunk_safe)
  box = Div (target, shrunk)
  rest = Sub (shrunk, target)
  half_rest = Div (rest, two)
  whole_margin = Round (half_rest)
  margin = Div (whole_margin, shrunk)"""
"""The same in whole pixels of the shrunk image, for a crop_pct below 1 (`CenterCrop`)."""

STEPS = """
<ir_version: {ir}, opset_import: ["" : {opset}]>
prepare (uint8[h, w, {channels}] pixels) => (float[1, {channels}, {height}, {width}] image)
{{
  {before}
  planes = Transpose <perm = [2, 0, 1]> ({picture})
  bytes = Unsqueeze (planes, zero)
  whole = Cast <to = 1> (bytes)
  sides = Shape <start = 0, end = 2> ({picture})
  rows = Slice (sides, zero, one)
  to_columns = Concat <axis = 0> (one, channels, rows, side)
  cached_columns = Resize <{cubic}> (whole, , , to_columns)
  {round_1}
  to_side = Concat <axis = 0> (one, channels, side, side)
  cached = Resize <{cubic}> (rounded_1, , , to_side)
  {round_2}
  extents = Cast <to = 11> ({cropped})
  shares_covered = Div (extents, covered)
  smallest = ReduceMin <keepdims = 1> (shares_covered, zero)
  {margins}
  first_at = Mul (margin, side_length)
  first_rounded = Round (first_at)
  end_share = Add (margin, box)
  end_at = Mul (end_share, side_length)
  end_rounded = Round (end_at)
  extent_any = Sub (end_rounded, first_rounded)
  extent = Clip (extent_any, unit, side_length)
  last_first = Sub (side_length, extent)
  first = Min (first_rounded, last_first)
  end = Add (first, extent)
  first_pixel = Cast <to = 7> (first)
  end_pixel = Cast <to = 7> (end)
  cut = Slice (rounded_2, first_pixel, end_pixel, image_axes)
  extent_pixels = Cast <to = 7> (extent)
  cut_rows = Slice (extent_pixels, zero, one)
  to_width = Concat <axis = 0> (one, channels, cut_rows, width)
  resized_columns = Resize <{filter}> (cut, , , to_width)
  {round_3}
  to_resized = Concat <axis = 0> (one, channels, height, width)
  resized_rows = Resize <{filter}> (rounded_3, , , to_resized)
  {round_4}
  levels = Div (rounded_4, white)
  centered = Sub (levels, mean)
  image = Div (centered, std)
}}
"""

ROUND = "up_{i} = Add ({of}, half)\n  floor_{i} = Floor (up_{i})\n  rounded_{i} = Clip (floor_{i}, black, white)"
"""To uint8 values, halves upwards."""


def add_preparation(path: Path, data_spec: DataSpec, settings: ImageSettings) -> None:
    """Change a student's file into one that takes pixels. `path`: of a file as `to_onnx` writes it, image
    [B, channels, H, W] float32 -> logits [B, C].
    """
    student = onnx.load(str(path))
    opset = next(entry.version for entry in student.opset_import if entry.domain in ("", "ai.onnx"))
    steps = _steps(data_spec, settings, student.ir_version, opset)
    metadata = {prop.key: prop.value for prop in student.metadata_props}
    whole = merge_models(add_prefix(steps, "prepare/", rename_inputs=False), student, [("prepare/image", "image")])
    onnx.helper.set_model_props(whole, metadata)
    onnx.checker.check_model(whole)
    onnx.save(whole, str(path))


def _steps(data_spec: DataSpec, settings: ImageSettings, ir: int, opset: int) -> ModelProto:
    height, width = data_spec.image_size
    crop, side = settings.crop, settings.cache_size
    assert side is not None, "a run's recipe is complete"
    before, picture, sides = FITS[settings.fit]
    resizes = ("cached_columns", "cached", "resized_columns", "resized_rows")
    text = STEPS.format(
        ir=ir,
        opset=opset,
        height=height,
        width=width,
        channels=data_spec.channels,
        before=before,
        picture=picture,
        cropped=sides,
        margins=EXACT if crop.crop_pct == 1 else WHOLE_PIXELS,
        cubic=RESIZE.format(mode="cubic"),
        filter=RESIZE.format(mode="cubic" if crop.interpolation == "bicubic" else "linear"),
        **{f"round_{i}": ROUND.format(i=i, of=of) for i, of in enumerate(resizes, 1)},
    )
    steps = parse_model(text)
    target = np.array([height, width], dtype=np.float64)
    covered = np.floor(target / crop.crop_pct)
    whole = {"zero": 0, "one": 1, "channels": data_spec.channels, "side": side, "height": height, "width": width}
    mean, std = (np.reshape(values, (1, -1, 1, 1)) for values in (data_spec.mean, data_spec.std))
    kinds: dict[type, dict[str, Any]] = {
        np.int64: {name: [value] for name, value in whole.items()} | {"image_axes": [2, 3]},
        np.float64: {"target": target, "covered": covered, "unit": 1, "two": 2, "side_length": side},
        np.float32: {"half": 0.5, "black": 0, "white": 255, "mean": mean, "std": std},
    }
    numbers: dict[str, Any] = {
        name: np.array(value, kind) for kind, named in kinds.items() for name, value in named.items()
    }
    if crop.crop_pct < 1:
        numbers["tiny"] = np.array(1e-9)
    if settings.fitting is not None:
        numbers |= {"swap": np.array([1, 0], dtype=np.int64), "sides_of_input": target}
        numbers |= {"sides_swapped": np.ascontiguousarray(target[::-1])}
    if settings.fitting is not None and settings.fit == "pad":
        numbers |= {"twice": np.array([2], dtype=np.int64), "fill": np.array(settings.fitting.fill, dtype=np.int32)}
    steps.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in numbers.items())
    return steps
