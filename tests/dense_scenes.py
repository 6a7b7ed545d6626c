# SPDX-License-Identifier: Apache-2.0
"""Drawn pictures with annotated objects: disks and squares on a plain ground, in common formats."""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

KINDS = ("disk", "square")
COLORS = ((200, 60, 60), (60, 80, 200))

Object = tuple[int, tuple[int, int, int, int]]  # kind, and left, top, right, bottom, pixels


def picture(seed: int, size: tuple[int, int] = (64, 80), most: int = 3) -> tuple[Image.Image, list[Object]]:
    """Draw an image of that height and width with one to `most` objects that do not overlap."""
    generator = np.random.default_rng(seed)
    height, width = size
    image = Image.new("RGB", (width, height), (150, 150, 140))
    draw = ImageDraw.Draw(image)
    objects: list[Object] = []
    for _ in range(int(generator.integers(1, most + 1))):
        side = int(generator.integers(14, 26))
        left, top = int(generator.integers(0, width - side)), int(generator.integers(0, height - side))
        box = (left, top, left + side, top + side)
        if any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for _, o in objects):
            continue
        kind = int(generator.integers(0, 2))
        shape = draw.ellipse if kind == 0 else draw.rectangle
        shape((box[0], box[1], box[2] - 1, box[3] - 1), fill=COLORS[kind])
        objects.append((kind, box))
    return image, objects


def coco_folder(root: Path, splits: dict[str, int], size: tuple[int, int] = (64, 80), first: int = 0) -> Path:
    """Write images/ and annotations/instances_SPLIT.json with boxes and polygons; categories are numbered 3 and 7."""
    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    seed = first
    for split, count in splits.items():
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        for _ in range(count):
            image, objects = picture(seed, size)
            name = f"{seed:03}.png"
            image.save(root / "images" / name)
            images.append({"id": seed, "file_name": name, "height": size[0], "width": size[1]})
            for kind, (left, top, right, bottom) in objects:
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": seed,
                        "category_id": (3, 7)[kind],
                        "bbox": [left, top, right - left, bottom - top],
                        "area": (right - left) * (bottom - top),
                        "iscrowd": 0,
                        "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                    }
                )
            seed += 1
        categories = [{"id": 3, "name": "disk"}, {"id": 7, "name": "square"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content), "utf-8")
    return root


def mask_folder(root: Path, splits: dict[str, int], size: tuple[int, int] = (64, 80), first: int = 0) -> Path:
    """Write SPLIT/images and SPLIT/masks with classes.json: ground, disk, square, and 9 for unlabeled."""
    seed = first
    for split, count in splits.items():
        for folder in ("images", "masks"):
            (root / split / folder).mkdir(parents=True)
        for _ in range(count):
            image, _ = picture(seed, size)
            pixels = np.asarray(image)
            mask = np.zeros(size, np.uint8)
            for kind, color in enumerate(COLORS):
                mask[(pixels == color).all(-1)] = kind + 1
            mask[:2, :2] = 9
            image.save(root / split / "images" / f"{seed:03}.png")
            Image.fromarray(mask).save(root / split / "masks" / f"{seed:03}.png")
            seed += 1
    (root / "classes.json").write_text('{"0": "ground", "1": "disk", "2": "square", "9": "unlabeled"}')
    return root
