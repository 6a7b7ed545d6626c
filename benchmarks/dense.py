# SPDX-License-Identifier: Apache-2.0
"""Detection on a CPU: a training step, loading and augmenting, and average precision.

    python -m benchmarks.dense                                  all three, two threads
    python -m benchmarks.dense COCO --cases step,loading        COCO: a folder as `train` takes it; drawn images without

step       a Faster R-CNN step as detection/photos takes it (forward, loss, backward, fused AdamW; 4 images of 256
           pixels) beside torchvision's own FasterRCNN around a bare timm ViT of the same sizes, with the same pyramid
           and heads. Steps alternate; the ratio is the median of neighbors'.
loading    images a second of processor time, in one process each: scale jitter, flip, normalization, boxes and masks
           in their places; torchvision's v2 reads the files as its references do. Our first epoch, which also builds
           the store, stands apart.
precision  AP of 1,000 images with interval and baselines, 80 classes, 30 detections and 7 objects an image.

`core-s` counts the processor time of all processes, which other work on the machine disturbs less than the wall clock.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.transforms import v2

from viticulture.data.annotated import prepare_annotated
from viticulture.data.batches.loader import Loader
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import ImageSettings
from viticulture.data.open import open_source
from viticulture.data.sources.source import Source
from viticulture.data.targets.objects import Boxed, Objects
from viticulture.data.targets.outlines import bitmap
from viticulture.data.transforms.crop import ScaleJitter
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.view import Augment
from viticulture.models.data_spec import DataSpec
from viticulture.models.detection.detector import ANCHOR, BOX_GRID, RATIOS, DetectorSizes, SimpleFeaturePyramid
from viticulture.models.detection.networks import detector
from viticulture.models.students import create_student
from viticulture.tasks.detection_metrics import DetectedObjects, evaluate_detections, mean_boxes

from .clock import begin, core_seconds, count, measure

BATCH, PIXELS, PATCH, WIDTH, SAMPLES, CLASSES = 4, 256, 16, 64, 64, 3
BODY: dict[str, Any] = {"embed_dim": 64, "depth": 4, "num_heads": 8}
HALF = (0.5, 0.5, 0.5)
WARMUP = 2
DRAWN = 64  # images of a folder that is drawn
LEAST = 1.0  # pixels that a box keeps, in both


class Plain(nn.Module):
    """A bare timm ViT under the pyramid, as torchvision wants a backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.out_channels = WIDTH
        self.vit: Any = timm.create_model(
            "vit_tiny_patch16_224", num_classes=0, img_size=PIXELS, class_token=False, global_pool="avg", **BODY
        )
        self.vit.norm.requires_grad_(False)  # the map is read before it
        self.pyramid = SimpleFeaturePyramid(BODY["embed_dim"], WIDTH)

    def forward(self, images: Tensor) -> Any:
        (features,) = self.vit.forward_intermediates(images, indices=1, norm=False, intermediates_only=True)
        return self.pyramid(features)


def theirs() -> Callable[[], Tensor]:
    """The loss of torchvision's model, which takes a list of images and resizes nothing."""
    sides = tuple((ANCHOR * PATCH * 2**level // 4,) for level in range(5))
    net = FasterRCNN(
        Plain(),
        rpn_anchor_generator=AnchorGenerator(sides, (RATIOS,) * 5),
        rpn_head=RPNHead(WIDTH, len(RATIOS), conv_depth=2),
        box_head=FastRCNNConvFCHead((WIDTH, BOX_GRID, BOX_GRID), [WIDTH] * 4, [4 * WIDTH], LayerNorm2d),
        box_predictor=FastRCNNPredictor(4 * WIDTH, CLASSES + 1),
        box_batch_size_per_image=SAMPLES,
        rpn_post_nms_top_n_train=4 * SAMPLES,
        min_size=PIXELS,
        max_size=PIXELS,
        image_mean=HALF,
        image_std=HALF,
    ).train()
    images, targets = scenes()
    ones = [{**target, "labels": target["labels"] + 1} for target in targets]
    return stepper(net, lambda: torch.stack(list(net(list(images), ones).values())).sum())


def ours() -> Callable[[], Tensor]:
    data_spec = DataSpec(tuple(map(str, range(CLASSES))), (PIXELS, PIXELS), HALF, HALF)
    student = create_student(
        "mae_tiny", replace(data_spec, classes=()), PATCH, {**BODY, "class_token": False, "global_pool": "avg"}
    )
    net = detector(student, data_spec, heads=DetectorSizes(WIDTH, False, SAMPLES)).train()
    images, targets = scenes()
    images = (images - 0.5) / 0.5
    return stepper(net, lambda: torch.stack(list(net.losses(images, targets).values())).sum())


def scenes() -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Noise with eight boxes an image."""
    generator = torch.Generator().manual_seed(0)
    targets = []
    for _ in range(BATCH):
        corner, side = torch.rand(2, 8, 2, generator=generator) * torch.tensor([150.0, 80.0])[:, None, None]
        labels = torch.randint(CLASSES, (8,), generator=generator)
        targets.append({"boxes": torch.cat([corner, corner + 10 + side], 1), "labels": labels})
    return torch.rand(BATCH, 3, PIXELS, PIXELS, generator=generator), targets


def stepper(net: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def step() -> Tensor:
        optimizer.zero_grad()
        total = loss()
        total.backward()
        optimizer.step()
        return total

    return step


def steps(options: argparse.Namespace) -> None:
    """Print the step's ratio to torchvision's."""
    torch.manual_seed(0)
    both = {"ours": ours(), "torchvision": theirs()}
    times = [{name: measure(step)[1] for name, step in both.items()} for _ in range(WARMUP + options.steps)][WARMUP:]
    ratio = median(each["ours"] / each["torchvision"] for each in times)
    medians = ", ".join(f"{name} {median(each[name] for each in times):.3f}" for name in both)
    print(f"step        core-s a step: {medians}; ratio {ratio:.3f}", flush=True)


def drawn(root: Path) -> Path:
    """A folder of photographs' size with disks in COCO's form."""
    import json

    draw = np.random.default_rng(0)
    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    rows, columns = np.mgrid[:480, :640]
    for i in range(DRAWN):
        pixels = np.kron(draw.integers(90, 160, (30, 40, 3)), np.ones((16, 16, 1))).astype(np.uint8)
        for _ in range(6):
            radius = int(draw.integers(15, 60))
            x, y = int(draw.integers(radius, 640 - radius)), int(draw.integers(radius, 480 - radius))
            pixels[(rows - y) ** 2 + (columns - x) ** 2 < radius**2] = draw.integers(0, 255, 3)
            angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
            outline = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1).ravel().round(1).tolist()
            box = [x - radius, y - radius, 2 * radius, 2 * radius]
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": i,
                    "category_id": 1,
                    "bbox": box,
                    "iscrowd": 0,
                    "segmentation": [outline],
                }
            )
        Image.fromarray(pixels).save(root / "images" / f"{i:03}.jpg", quality=90)
        images.append({"id": i, "file_name": f"{i:03}.jpg", "height": 480, "width": 640})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "disk"}]}
    (root / "annotations" / "instances_train.json").write_text(json.dumps(content), "utf-8")
    return root


def our_epochs(source: Source, masks: bool) -> Callable[[], int]:
    """One epoch a call, the first with the building of the store where there is none."""
    every = DataSettings(val_fraction=0, test_fraction=0, skip_unreadable=True)
    data = prepare_annotated(source, every, ImageSettings(image_size=PIXELS), masks=masks)
    augment = Augment([ScaleJitter((0.5, 2.0)), Flip()], (PIXELS, PIXELS), data.mean, data.std, 0)
    batch_size, targets = min(BATCH, len(data.train)), data.annotations["train"]
    loader = Loader(data.train, (augment,), batch_size, 0).with_targets(targets, masks)
    return lambda: sum(len(batch["image"]) for batch in loader)


def their_epochs(source: Source, masks: bool) -> Callable[[], int]:
    """The same by torchvision's v2, image by image from the files."""
    transform = v2.Compose(
        [
            v2.ScaleJitter((PIXELS, PIXELS), (0.5, 2.0), antialias=True),
            v2.RandomCrop(PIXELS, pad_if_needed=True),
            v2.RandomHorizontalFlip(),
            v2.SanitizeBoundingBoxes(min_size=LEAST),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    assert source.objects is not None
    objects, rows = source.objects, source.splits["train"].tolist()

    def images() -> Iterator[Any]:
        for row in rows:
            opened: Any = source.reader.open(row)
            with opened as file, Image.open(file) as picture:
                image = v2.functional.pil_to_tensor(picture.convert("RGB"))
            height, width = image.shape[1:]
            held = objects[row].part(~objects[row].crowd)
            boxes = tv_tensors.BoundingBoxes(held.boxes, format="XYXY", canvas_size=(height, width))
            target: dict[str, Any] = {"boxes": boxes, "labels": held.labels}
            if masks:
                planes = [torch.from_numpy(bitmap(shape, height, width)) for shape in held.shapes or ()]
                stacked = torch.stack(planes) if planes else torch.zeros(0, height, width, dtype=torch.uint8)
                target["masks"] = tv_tensors.Mask(stacked)
            yield transform(tv_tensors.Image(image), target)

    def epoch() -> int:
        waiting, seen = [], 0
        for image, _ in images():
            waiting.append(image)
            seen += 1
            if len(waiting) == BATCH:
                torch.stack(waiting)
                waiting.clear()
        return seen

    return epoch


def loading(options: argparse.Namespace) -> None:
    """Print images a second of ours and torchvision's, with boxes and, where there are any, with masks."""
    with tempfile.TemporaryDirectory() as folder:
        source = open_source(options.data or drawn(Path(folder) / "drawn"), "objects")
        drawn_masks = bool(source.objects and all(each.shapes for each in source.objects if len(each)))
        for masks in (False, True) if drawn_masks else (False,):
            began = core_seconds()
            mine = our_epochs(source, masks)
            first = mine() / (core_seconds() - began)
            rates: dict[str, list[float]] = {"ours": [], "torchvision": []}
            yours = their_epochs(source, masks)
            for _ in range(options.epochs):
                for name, epoch in (("ours", mine), ("torchvision", yours)):
                    began = core_seconds()
                    rates[name].append(epoch() / (core_seconds() - began))
            medians = {name: median(each) for name, each in rates.items()}
            print(
                f"loading     images a core-s, boxes{' and masks' * masks}: ours {medians['ours']:.1f} (first epoch "
                f"{first:.1f}), torchvision v2 {medians['torchvision']:.1f}; "
                f"ratio {medians['ours'] / medians['torchvision']:.2f}",
                flush=True,
            )


def precision(options: argparse.Namespace) -> None:
    """Print how long the numbers of 1,000 images take."""
    draw, classes = np.random.default_rng(0), 80
    detections, true = [], []
    for _ in range(options.images):
        corner, side = draw.uniform(0, 500, (7, 2)), draw.uniform(10, 140, (7, 2))
        boxes, labels = np.concatenate([corner, corner + side], 1), draw.integers(0, classes, 7)
        near = boxes[draw.integers(0, 7, 30)] + draw.normal(0, 6, (30, 4))
        predicted = np.where(
            draw.uniform(size=30) < 0.5, labels[draw.integers(0, 7, 30)], draw.integers(0, classes, 30)
        )
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        detections.append(DetectedObjects(near.astype(np.float32), draw.uniform(size=30).astype(np.float32), predicted))
        crowd = torch.zeros(7, dtype=torch.bool)
        true.append(Objects(torch.from_numpy(boxes).float(), torch.from_numpy(labels), crowd))
    sizes = np.full((options.images, 2), 640)
    boxed = Boxed(true, masks=False)
    rows = mean_boxes(boxed, sizes, classes)
    began = core_seconds()
    result = evaluate_detections(detections, boxed, tuple(map(str, range(classes))), sizes, rows)
    print(
        f"precision   core-s for {options.images:,} images: {core_seconds() - began:.1f} (AP {result.boxes.ap:.3f})",
        flush=True,
    )


CASES = {"step": steps, "loading": loading, "precision": precision}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="", help="a folder with boxes; drawn images where it is left out")
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=10, help="measured steps of each")
    parser.add_argument("--epochs", type=count, default=3, help="measured epochs of each")
    parser.add_argument("--images", type=count, default=1000, help="images whose average precision is taken")
    parser.add_argument("--cases", default=",".join(CASES), help="separated by commas")
    options = begin(parser)
    for name in options.cases.split(","):
        CASES[name](options)


if __name__ == "__main__":
    main()
