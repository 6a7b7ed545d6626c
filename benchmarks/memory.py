# SPDX-License-Identifier: Apache-2.0
"""What a training step takes of a GPU's memory, estimated without one.

    python -m benchmarks.memory [RECIPE ...]        print; all recipes for a GPU where none is named
    python -m benchmarks.memory --write [RECIPE ...]    and write it into the recipes' headers
    python -m benchmarks.memory --measure [RECIPE ...]  beside it what real steps take, on a GPU

A step of the recipe's student, guides, method and optimizer is taken on fake tensors, which have a size and no numbers,
in bfloat16 as on a GPU. Counted are all storages that are alive at once: weights, gradients, optimizer state, batch and
activations. Not counted: what CUDA keeps for itself, kernels' scratch space, gaps between blocks, decoded images that
fit on the device, EMA, SAM's copy of the weights, and what torch.compile saves. Teachers have random weights of the
same sizes. A detector's heads get as many proposals as they sample at most, a quarter of them with masks, each from the
finest map; the loss is the sum of what they say. tests/test_memory.py holds an estimate against a real step on a CPU.
Real steps are of the same parts on random images, in bfloat16 and not compiled; the time is the median of five after
two.
"""

import re
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import timm
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from torchvision.ops import roi_align

from viticulture.config.load import about, load_config, shipped
from viticulture.config.resolve import Config
from viticulture.keywords import made_parts
from viticulture.methods.method import Method, Setup
from viticulture.models.cpu import attention as cpu_attention
from viticulture.models.cpu import involution
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.teachers import feature_maps as teacher_maps
from viticulture.models.teachers import outputs as teachers
from viticulture.models.teachers import patches as patch_teacher
from viticulture.models.teachers.frozen import Frozen
from viticulture.models.vit import attention
from viticulture.models.vit.attention import DroppedAttention
from viticulture.models.weights.sources import Description
from viticulture.training.assemble import build_guides, patch_size

WARM, TIMED = 2, 5
"""Steps."""
OBJECTS = 64
"""In the image of a batch that has most; their masks are kept in bits."""
CLASSES = {"./coco": 80, "imagenet": 1000, "cifar100": 100, "cifar10": 10, "imagenet100": 100, "domainnet": 345}
GRAY = (0.5, 0.5, 0.5)


class Peak(TorchDispatchMode):
    """Follows the bytes of all storages that operations return, from their birth to their end."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self.known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count(result)
        return result

    def count(self, tensors: Any) -> None:
        """Take note of the storages of tensors in any nesting."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self.known:
                self.known[storage] = storage.nbytes()
                self.live += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())
        self.most = max(self.most, self.live)

    def _gone(self, size: int) -> None:
        self.live -= size


@dataclass(frozen=True)
class Estimate:
    """Of one step, in bytes.

    Args:
        peak: most that is alive at once.
        batch_size: images a step.
    """

    peak: int
    batch_size: int

    def __str__(self) -> str:
        return f"about {self.peak / 1e9:.1f} GB at batch {self.batch_size} in bfloat16, estimated"


def estimate(config: Config, classes: int, folder: Path, bfloat16: bool = True) -> Estimate:
    """The memory of a step at the recipe's sizes.

    Args:
        config: names image size and batch size.
        classes: of the data set.
        folder: for what teachers need on disk.
        bfloat16: as on a GPU; else float32.
    """
    train = config.train
    with random_teachers(folder):
        method = assembled(config, classes, config.images.shape[0])
    groups = method.optim.groups(method.student, nn.ModuleDict({**method.guides, **method.auxiliary}))
    half = torch.autocast("cpu", torch.bfloat16) if bfloat16 else nullcontext()
    whole = patch.object(involution, "BLOCK", sys.maxsize)  # a GPU takes all images at once
    fused = [patch.object(module, "trains_in_bfloat16", lambda x: False) for module in (attention, cpu_attention)]
    with whole, fused[0], fused[1], FakeTensorMode() as mode, Peak() as peak:
        _fake(method, mode)
        peak.count([*method.parameters(), *method.buffers(), *_hidden(method)])
        batch = random_batch(config, method, classes)
        with half:
            loss = loss_of(method, batch)
        loss.backward()
    trained = sum(parameter.numel() for group in groups for _, parameter in group["params"])
    return Estimate(peak.most + _STATE[method.optim.name] * 4 * trained, (train.batch_size or 0) // train.accumulate)


@dataclass(frozen=True)
class Measured:
    """Real steps on a GPU.

    Args:
        peak: most bytes that torch had handed out at once.
        milliseconds: of a step.
        device: the GPU's name.
    """

    peak: int
    milliseconds: float
    device: str

    def __str__(self) -> str:
        return f"{self.peak / 1e9:.1f} GB and {self.milliseconds:.0f} ms a step, measured on an {self.device}"


def measure(config: Config, classes: int, folder: Path, device: str = "cuda") -> Measured:
    """What some steps of a recipe take of a device, weights and optimizer included; of a CPU the time alone."""
    with random_teachers(folder):
        method = assembled(config, classes, config.images.shape[0]).to(device)
    trained = nn.ModuleDict({**method.guides, **method.auxiliary})
    optimizer, seconds = method.optim.build(method.optim.groups(method.student, trained)), []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM + TIMED):
        with torch.device(device):
            batch = random_batch(config, method, classes)
            began = time.perf_counter()
            with torch.autocast(device, torch.bfloat16):
                loss = loss_of(method, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if not loss.isfinite():  # waits for the device
            raise ArithmeticError(f"the loss is {loss}")
        seconds.append(time.perf_counter() - began)
    name = torch.cuda.get_device_name().removeprefix("NVIDIA ") if device == "cuda" else device
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return Measured(peak, 1000 * median(seconds[WARM:]), name)


def random_batch(config: Config, method: Method, classes: int) -> dict[str, Tensor]:
    """A step's images and what is known of them, as large as a recipe's and without meaning."""
    side, train, spec = config.images.shape[0], config.train, method.batch_spec
    images = (train.batch_size or 0) // train.accumulate
    shapes = {"image": (images, 3, side, side)}
    shapes |= {"image2": shapes["image"]} if spec.views == 2 else {}
    shapes |= {f"image{3 + k}": (images, 3, spec.local_size, spec.local_size) for k in range(spec.local_crops)}
    batch = {name: torch.randn(shape) for name, shape in shapes.items()}
    mixed, labeled = "mix" in config.values["augment"], classes if spec.labels else 1
    batch["label"] = torch.rand(images, classes) if mixed else torch.randint(labeled, (images,))
    batch["noise"] = torch.rand(images, spec.noise)
    if spec.contents == "pixels":
        batch["classes"] = torch.randint(classes, (images, side, side))
    if spec.masks:
        batch["masks"] = torch.zeros(images, OBJECTS // 8, side, side, dtype=torch.uint8)
    return batch


def loss_of(method: Method, batch: dict[str, Tensor]) -> Tensor:
    """The sum of all terms; of a detector's heads at their most."""
    objects = method.batch_spec.contents == "objects"
    terms = heads_at_most(method.student, batch) if objects else method.losses(batch)
    return torch.stack(list(terms.values())).sum()


def heads_at_most(detector: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums of all that a detector computes where every image has as many proposals as are sampled."""
    images, heads = batch["image"], detector.roi_heads
    maps = detector.maps(images)
    objectness, moves = detector.rpn.head(list(maps.values()))
    count = len(images) * heads.fg_bg_sampler.batch_size_per_image

    def pooled(boxes: int, pool: Any) -> Tensor:
        finest = next(iter(maps.values())).float()
        return roi_align(finest, torch.zeros(boxes, 5), pool.output_size, 1.0, pool.sampling_ratio)

    terms = [*objectness, *moves, *heads.box_predictor(heads.box_head(pooled(count, heads.box_roi_pool)))]
    if heads.mask_predictor is not None:
        positive = int(count * heads.fg_bg_sampler.positive_fraction)
        terms.append(heads.mask_predictor(heads.mask_head(pooled(positive, heads.mask_roi_pool))))
    return {str(number): term.float().sum() for number, term in enumerate(terms)}


_STATE = {"adamw": 2, "sgd": 1, "nesterov": 1, "muon": 2}  # numbers kept for each weight; Muon's for matrices are 1


def assembled(config: Config, classes: int, side: int) -> Method:
    """Student, guides and method of a recipe, as they start."""
    made, wanted = config.method_class, config.student
    data_spec = DataSpec(tuple(map(str, range(classes if made.batch_spec.labels else 0))), (side, side), GRAY, GRAY)
    shown = data_spec if made.batch_spec.contents == "classes" else replace(data_spec, classes=())
    student = create_student(wanted.name, shown, patch_size(wanted, data_spec), wanted.options)
    for module in student.modules():
        if isinstance(module, DroppedAttention):
            module.attn_drop.p = 0.0  # a GPU's kernel keeps no probabilities, as ours for CPUs does
    guides = build_guides(config, student, data_spec)
    setup = Setup(student, data_spec, guides, config.optim, config.schedule)
    keywords = {key: value for key, value in config.values["method"].items() if key != "name"}
    method: Method = made(setup, **made_parts(made, keywords))
    return method.train()


@contextmanager
def random_teachers(folder: Path) -> Iterator[None]:
    """Teachers are made of their architecture alone: a timm tag's, or that of the recipe that trains runs/NAME."""

    def opened(source: str) -> tuple[nn.Module, DataSpec, Description]:
        if not source.startswith("runs/"):
            net: Any = timm.create_model(source.partition("=")[0].partition(".")[0])
            height, width = net.pretrained_cfg["input_size"][1:]
            data_spec = DataSpec(tuple(map(str, range(net.num_classes))), (height, width), GRAY, GRAY)
            return net, data_spec, Description(source, "", {})
        run = source.removeprefix("runs/")
        name = max((n for n in shipped() if run.startswith(Path(n).name)), key=lambda n: len(Path(n).name))
        config = load_config(name)
        side, wanted = config.images.shape[0] if config.images.image_size else 64, config.student
        data_spec = DataSpec(tuple(map(str, range(classes_of(name)))), (side, side), GRAY, GRAY)
        net = create_student(wanted.name, data_spec, patch_size(wanted, data_spec), wanted.options)
        return net, data_spec, Description(source, wanted.name, {})

    with (
        patch.object(teachers, "open_network", opened),
        patch.object(patch_teacher, "open_network", opened),
        patch.object(teacher_maps, "open_network", opened),
        patch.object(teachers, "check_classes", lambda *_: None),
    ):
        yield


def _fake(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace parameters and buffers, frozen teachers' too, by fakes."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        module._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype))
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def _hidden(method: nn.Module) -> Iterator[Tensor]:
    for module in method.modules():
        if isinstance(module, Frozen):
            yield from module.net.parameters()
            yield from module.net.buffers()


def classes_of(name: str) -> int:
    """Of the data set that a recipe's command names; 1000 where that is a folder of one's own."""
    named = re.search(r"viticulture train (\S+)", about(name).get("Command", ""))
    return CLASSES.get(named[1] if named else "", 1000)


def for_gpus() -> list[str]:
    """Recipes that say how large images and batches are, but for those made for a CPU."""
    names = []
    for name in shipped():
        config = load_config(name)
        sized = config.images.image_size and config.train.batch_size
        if sized and not re.search(r"cpu|digits|default/|(detection|segmentation)/photos", name):
            names.append(name)
    return names


def write(name: str, line: str) -> None:
    """Put a `Memory:` line behind the `Hardware:` line of a recipe's header, in place of an earlier one."""
    path = shipped()[name]
    lines = [text for text in path.read_text("utf-8").splitlines() if not text.startswith("# Memory:")]
    place = next(number for number, text in enumerate(lines) if text.startswith("# Result:"))
    lines.insert(place, f"# Memory:    {line}")
    path.write_text("\n".join(lines) + "\n", "utf-8")


def main(words: list[str]) -> None:
    """Print an estimate a line, and what real steps take."""
    names = [word for word in words if word not in ("--write", "--measure")] or for_gpus()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            given = load_config(name), classes_of(name), Path(folder)
            line = told(estimate, *given)
            print(f"{name:40} {line}", flush=True)
            if "--measure" in words:
                print(f"{'':40} {told(measure, *given)}", flush=True)
                torch.cuda.empty_cache()
            if "--write" in words:
                write(name, line)


def told(find: Callable[..., Any], *given: Any) -> str:
    """What is found, or why nothing is: the other recipes go on."""
    try:
        return str(find(*given))
    except Exception as error:
        return f"not found ({type(error).__name__}: {str(error).splitlines()[0][:150]})"


if __name__ == "__main__":
    main(sys.argv[1:])
