# SPDX-License-Identifier: Apache-2.0
"""GPU code without a GPU: fake tensors know their device, and no two devices meet."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from timm.layers.drop import DropPath
from torch._subclasses.fake_tensor import FakeTensorMode

from fakes import fake_batch, fake_method, fake_module
from pairs import GRAY, GUIDES, METHODS, REFUSED, SIDE, STUDENTS, Data, pair, step
from slowly import slow_but
from viticulture.analysis.attention import class_map, head_token_maps, mean_attention
from viticulture.config.schema import find_method, guide_class
from viticulture.data.transforms.color import Blur, ColorJitter, Gray, Solarize
from viticulture.data.transforms.crop import ResizedCrop
from viticulture.data.transforms.erase import Erase
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.mix import Mix
from viticulture.data.transforms.rand_augment import RandAugment
from viticulture.data.transforms.view import Augment
from viticulture.errors import UserError
from viticulture.models.layout import layout
from viticulture.models.taps import READINGS, Taps
from viticulture.training.feed import training_loader
from viticulture.training.replay import Budget, Memory
from viticulture.training.run import INDUCTOR
from viticulture.training.session import Session

PAIRS = [
    (method, guide)
    for method in METHODS
    for guide, (name, _) in GUIDES.items()
    if not name or guide_class(name).requires <= find_method(method).provides
]
ALL = [(*pair, student) for student in STUDENTS for pair in PAIRS]
SOME = [
    case
    for case in ALL
    if case[2] == "vit with dropout" or (case[:2] == ("supervised", "none") and case[2] not in ("vit", "rednet"))
]
ONCE = [case for case in SOME if "supervised" in case or "none" in case]  # every method, guide and family
TAUGHT = [case for case in ONCE if case[2] == "vit with dropout"]  # every method and guide


@pytest.fixture
def any_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make autocast accept `meta`, for which torch has none."""
    real = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, **options: real("cpu" if kind == "meta" else kind, **options))


@pytest.mark.parametrize(("method", "guide", "student"), slow_but(TAUGHT, ALL))
@pytest.mark.usefixtures("any_autocast")
def test_a_step_stays_on_one_device(method: str, guide: str, student: str, data: Data, teachers: Path) -> None:
    """Forward, backward, guides' after_backward, clipping and optimizer on a fake `meta` device, then validation."""
    if (session := unless_refused(method, guide, student, data, teachers)) is None:
        return
    mode, batch = FakeTensorMode(), training_loader(session).batch(0, 0)
    optimizer = fake_method(session.method, mode, "meta")
    with mode:
        moved = fake_batch(batch, mode, "meta")
        assert step(session, moved, optimizer).device.type == "meta"
        assert all(value.device.type == "meta" for value in session.method.eval().all_metrics(moved).values())
    stepped = [weight for group in optimizer.param_groups for weight in group["params"]]
    assert all(weight in optimizer.state for weight in stepped if weight.grad is not None)


def unless_refused(method: str, guide: str, student: str, data: Data, teachers: Path) -> Session | None:
    """Return None for a pair that this family of students refuses."""
    try:
        return pair(method, guide, student, data, teachers)
    except UserError:
        assert (method, guide) != ("supervised", "none")
        assert student != "vit with dropout" or (method, guide) in REFUSED
        return None


class Bfloat16:
    """Autocast to bfloat16 on CUDA, which torch turns off where there is no such device."""

    def __enter__(self) -> None:
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_autocast_enabled("cuda", True)
        torch.autocast_increment_nesting()

    def __exit__(self, *_: object) -> None:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


CUDA = "cuda:0"


@pytest.mark.parametrize(("method", "guide", "student"), slow_but(ONCE, SOME))
def test_losses_and_metrics_are_computed_on_a_gpu_in_bfloat16(
    method: str, guide: str, student: str, data: Data, teachers: Path
) -> None:
    """On fake `cuda:0` tensors; a backward pass needs a driver even for fakes."""
    if (session := unless_refused(method, guide, student, data, teachers)) is None:
        return
    mode, batch = FakeTensorMode(), training_loader(session).batch(0, 0)
    fake_method(session.method, mode, CUDA)
    with mode, Bfloat16():
        moved = fake_batch(batch, mode, CUDA)
        terms = session.method.losses(moved)
        with torch.no_grad():
            measured = session.method.eval().all_metrics(moved)
    assert {str(value.device) for value in [*terms.values(), *measured.values()]} == {CUDA}
    assert {term.dtype for term in terms.values()} == {torch.float32}


@pytest.mark.parametrize("student", ["vit", "dhvt", "cit"])
def test_an_explanation_runs_on_a_gpu(student: str, data: Data, teachers: Path) -> None:
    net, mode = pair("supervised", "none", student, data, teachers).method.student.eval(), FakeTensorMode()
    taps, where = Taps(net, frozenset(READINGS)), layout(net)
    grid = where.grid((SIDE, SIDE))
    fake_module(net, mode, CUDA)
    with mode, torch.no_grad():
        readings = taps(torch.empty(2, 3, SIDE, SIDE, device=CUDA))
        maps = [make(readings.attention[-1], grid) for make in (class_map, lambda reading, _: mean_attention(reading))]
        maps += [head_token_maps(readings.attention[-1], grid)] if student == "dhvt" else []
    assert {str(x.device) for x in [*readings.blocks, *readings.norms, *readings.class_attention, *maps]} == {CUDA}


def test_cached_logits_are_moved_to_the_device(tmp_path: Path) -> None:
    budget, images, answer = Budget(tmp_path, 10**6), torch.zeros(2, 3), torch.randn(2, 5)
    first = Memory(tmp_path / "a", budget, lambda _: (0, 0), torch.device("cpu"))
    first(images, lambda: answer)
    first.finish_epoch()
    second = Memory(tmp_path / "a", budget, lambda _: (0, 0), torch.device("meta"))
    found = second(images, lambda: pytest.fail("the teacher was asked"))
    assert found.device.type == "meta"
    assert found.shape == answer.shape


def test_images_are_augmented_on_another_device() -> None:
    """Not on a fake device, where the random numbers, which choose rows, would be fake too."""
    transforms = [
        ResizedCrop(),
        Flip(),
        RandAugment(),
        ColorJitter(),
        Gray(),
        Blur(),
        Solarize(),
        Erase(),
        Mix(mixup=0.8),
    ]
    augment = Augment(transforms, (16, 16), GRAY, GRAY, 3)
    u, batch_u = torch.rand(4, augment.columns, dtype=torch.float64), torch.rand(Mix.columns, dtype=torch.float64)
    images = torch.empty(4, 3, 24, 24, dtype=torch.uint8, device="meta")
    labels = torch.empty(4, dtype=torch.long, device="meta")
    pixels, soft = augment(images, torch.full((4, 2), 24), u, batch_u, labels)
    assert pixels.device.type == soft.device.type == "meta"


@pytest.mark.parametrize("student", slow_but(("vit", "dhvt", "cit"), STUDENTS))
def test_a_compiled_pass_is_one_graph(student: str, data: Data, teachers: Path) -> None:
    net = pair("supervised", "none", student, data, teachers).method.student.eval()
    images = torch.randn(2, 3, SIDE, SIDE)
    torch._dynamo.reset()
    with torch.no_grad():
        graph = torch.compile(net, backend="eager", fullgraph=True)
        torch.testing.assert_close(graph(images), net(images))


COMPILER = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="inductor needs a C++ compiler, and there is none"
)


COMPILED = {
    **dict.fromkeys([("none", "dhvt", False), ("none", "dhvt", True), ("none", "vit", False)], "inductor"),
    **{(guide, "vit", False): "inductor" for guide in ("bootstrap", "attention_link", "with hidden states", "logits")},
    **{(guide, "vit", True): "aot_eager" for guide in ("bootstrap", "logits")},
    **{(guide, "vit", False): "aot_eager" for guide in ("shared bootstrap", "attention_distillation", "one head")},
    ("none", "cit", False): "aot_eager",
}
"""Guide, student, by block -> compiler; the fastest runs first, without code."""


@pytest.mark.parametrize(
    ("guide", "student", "by_block", "backend"),
    [
        *((*case, "eager") for case in COMPILED if case[0] in ("bootstrap", "attention_link")),
        *(
            pytest.param(*case, backend, marks=[pytest.mark.slow, *([COMPILER] if backend == "inductor" else [])])
            for case, backend in COMPILED.items()
        ),
    ],
)
def test_a_compiled_step_is_the_eager_one(
    guide: str, student: str, by_block: bool, backend: str, data: Data, teachers: Path
) -> None:
    """No graph breaks in the student, guides' networks and teachers. Without drop path, whose random numbers a compiled
    graph draws otherwise; float32 sums in another order."""
    method = (session := pair("supervised", guide, student, data, teachers)).method
    for module in method.student.modules():
        if isinstance(module, DropPath):
            module.drop_prob = 0.0
    found = []
    for compiled in (False, True):
        batch = training_loader(session).batch(0, 0)  # anew, as teachers remember the outputs of the last images
        if compiled:
            torch._dynamo.reset()
            options = {"options": INDUCTOR} if backend == "inductor" else {}
            method.compile_networks(by_block, backend=backend, fullgraph=True, **options)
        method.zero_grad()
        loss = torch.stack(list(method.losses(batch).values())).sum()
        loss.backward()
        for one in method.guides.values():
            one.after_backward()
        weights = dict(method.named_parameters())
        gradients = {  # heads that no loss reads have none, or zeros where a graph gives all
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad for name, weight in weights.items()
        }
        found.append({"loss": loss.detach(), **gradients})
    assert sum(bool(value.any()) for value in found[0].values()) > 10
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
