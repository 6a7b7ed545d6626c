# SPDX-License-Identifier: Apache-2.0
"""Images with masks whose pixels are classes.

    images/a.jpg  masks/a.png                        all for training
    train/images/a.jpg  train/masks/a.png, val/...   with splits; images/train/a.jpg and masks/train/a.png likewise

A mask is a gray or an indexed PNG; its values are classes. classes.json names them, {"0": "sky", ...} or ["sky", ...];
without it the palettes of indexed PNGs do, by the colors of the values that occur. Classes called unlabeled, void or
ignore are no classes, and neither is the value 255.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from ...disk import matching
from ...errors import UserError, counted, some
from ...parallel import in_parallel
from ..images.decode import Unreadable, load_picture, reason
from ..images.pillow import UPRIGHT, exif_orientation, raw_modes
from ..targets.objects import UNLABELED, MaskFiles
from .annotated import annotated, check_names, comparison_of, folders_of, in_folder, split_by_folder
from .files import open_file
from .folders import images_among, scan
from .source import Source
from .written import files_of, json_of, name_of, subfolder, whole

NAMES = "classes.json"
NO_CLASS = re.compile(r"unlabell?ed|void|ignored?", flags=re.IGNORECASE)  # either spelling
MEANINGLESS = 254  # in `MaskFiles.values`: a pixel value that no class has
MAX_CLASSES = 250


def is_mask_folder(root: Path) -> bool:
    """Return whether a folder has images and masks."""
    return any(subfolder(folder, "masks") and subfolder(folder, "images") for folder in (root, *matching(root, "*")))


def open_masks(root: Path) -> Source:
    """Open such a folder. Raises: UserError for images without masks, and the other way round."""
    scanned = scan(root)[0]
    files = [file.path for file in scanned]
    paths = sorted(file.path for file in images_among([f for f in scanned if "images" in folders_of(f.path)]))
    plain = comparison_of(files)
    masks = {plain(path.rpartition(".")[0]): path for path in files if path.lower().endswith(".png")}
    mask_names = {path: plain(in_folder(path, "masks")) for path in paths}
    if missing := [path for path, stem in mask_names.items() if stem not in masks]:
        raise UserError(f"{root} has {counted(len(missing), 'image')} without a mask in PNG: {some(missing, 5)}")
    if shared := [stem for stem, images in Counter(mask_names.values()).items() if images > 1]:
        raise UserError(f"{root} has several images of one mask: {some([masks[stem] for stem in shared], 5)}")
    idle = sorted(
        {path for path in masks.values() if "masks" in folders_of(path)} - {masks[s] for s in mask_names.values()}
    )
    if idle:
        raise UserError(f"{root} has {counted(len(idle), 'mask')} without an image: {some(idle, 5)}")
    if not paths:
        raise UserError(f"{root} has folders of images and masks, but no images in them")
    drawn = [root / masks[stem] for stem in mask_names.values()]
    names = _names(root, drawn)
    classes = [name for _, name in sorted(names.items()) if not NO_CLASS.fullmatch(name)]
    values = np.full(256, MEANINGLESS, dtype=np.uint8)
    values[UNLABELED] = UNLABELED
    for value, name in names.items():
        values[value] = classes.index(name) if name in classes else UNLABELED
    if len(classes) < 2:
        raise UserError(f"{root} has {counted(len(classes), 'class')} of pixels only; segmentation needs two")
    splits = [split_by_folder(path) for path in paths]
    checked = check_names(classes, root / NAMES)
    return annotated(root, root, paths, splits, checked, MaskFiles(drawn, values))


def read_mask(path: Path, values: np.ndarray, size: tuple[int, int], turn: int = 1) -> np.ndarray:
    """Read a mask as [H, W] uint8 of classes, 255 for none. `turn`: EXIF orientation of its image, by which a mask in
    the orientation of the file is turned. Raises: UserError for another size, for colors, and for values without a
    class.
    """
    image = _loaded(path)
    if image.mode not in ("P", "L", "1", "I;16", "I"):
        raise UserError(f"mask {path} holds colors ({image.mode}); its pixels must be numbers of classes")
    (bits,) = [int(way[2:]) for way in raw_modes(image)[0] if way in ("L;2", "L;4")] or [8]
    lying = (image.height, image.width)
    if turn in UPRIGHT and exif_orientation(image) == 1 and (lying != size or lying[0] == lying[1]):
        image = image.transpose(UPRIGHT[turn])
    if (image.height, image.width) != size:
        raise UserError(
            f"mask {path} is {image.width}x{image.height} pixels, its image {size[1]}x{size[0]}; they must agree"
        )
    pixels = np.asarray(image)
    if image.mode == "1":
        pixels = pixels.astype(np.uint8)
    elif image.mode == "L":
        pixels = pixels // (255 // (2**bits - 1))  # Pillow stretches fewer bits to 0 to 255
    highest = int(pixels.max(initial=0))
    if highest > 255:
        raise UserError(f"mask {path} holds the value {highest}; at most {MAX_CLASSES} classes are possible")
    classes: np.ndarray = values[pixels.astype(np.uint8)]
    if (classes == MEANINGLESS).any():
        value = int(pixels[classes == MEANINGLESS][0])
        raise UserError(f"mask {path} holds the value {value}, which no class has; name it in {NAMES}")
    return classes


def _loaded(path: Path) -> Image.Image:
    """Decode a mask as an image. Raises: UserError where it cannot be decoded."""
    try:
        with open_file(path) as file:
            return load_picture(file, str(path))
    except (OSError, Unreadable) as error:
        why = error.reason if isinstance(error, Unreadable) else reason(error)
        raise UserError(f"cannot read mask {path}: {why}") from error


def _names(root: Path, masks: Sequence[Path]) -> dict[int, str]:
    """Return value -> name of its class, by classes.json or else by the palettes of the masks."""
    file = next((file for file in files_of(root, ".json") if file.name.lower() == NAMES), root / NAMES)
    if file.is_file():
        try:
            content = json_of(file, names=True)
            pairs = enumerate(content) if isinstance(content, list) else content.items()
            named = [(whole(key), name_of(name)) for key, name in pairs]
        except (ValueError, AttributeError, TypeError) as error:
            raise UserError(f'{file} must name the classes, {{"0": "sky", ...}} or ["sky", ...]: {error}') from error
        names = dict(named)
        if not names or not all(0 <= value < UNLABELED for value in names) or len(names) > MAX_CLASSES:
            raise UserError(
                f"{file} must name 2 to {MAX_CLASSES} values from 0 to 254, got {some(list(map(str, names)), 5)}"
            )
        return names
    names = {}
    first: dict[int, Path] = {}
    for number, colors in enumerate(in_parallel(lambda i: _colors(masks[i]), range(len(masks)))):
        for value, color in colors.items():
            name = f"color {color} ({value})"
            if names.setdefault(value, name) != name:
                raise UserError(
                    f"the value {value} is {names[value].split()[1]} in {first[value]} and {color} in "
                    f"{masks[number]}; name the values in {root / NAMES}, or paint all masks by one palette"
                )
            first.setdefault(value, masks[number])
    if not names:
        raise UserError(f"{root} needs a {NAMES} that names its masks' values, or masks with a palette")
    if len(names) > MAX_CLASSES:
        raise UserError(f"{root} has masks of {len(names)} values; at most {MAX_CLASSES} classes are possible")
    return names


def _colors(mask: Path) -> dict[int, str]:
    """Return the values that occur in an indexed mask, except 255, and their colors; nothing for any other mask, and
    for one that cannot be read, which is reported later."""
    with suppress(UserError):
        image = _loaded(mask)
        if image.mode == "P" and (colors := image.getpalette()):
            held = [value for value, count in enumerate(image.histogram()[:UNLABELED]) if count]
            colors += [0] * (3 * UNLABELED - len(colors))  # a palette may be short
            return {value: "#" + bytes(colors[3 * value : 3 * value + 3]).hex() for value in held}
    return {}
