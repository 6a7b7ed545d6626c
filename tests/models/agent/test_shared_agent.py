# SPDX-License-Identifier: Apache-2.0
"""An agent with a ViT's weights: the authors' shared layers, one set of weights, two sets of gradients."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp, SwiGLU
from timm.models import VisionTransformer
from timm.models.vision_transformer import ParallelScalingBlock
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from boot_names import both
from conftest import GOLDEN, Golden
from networks import data_spec, error, neighbor_matrices
from refusals import refused
from viticulture.models.agent.agent_cnn import AgentShape, ResStem, Sizes
from viticulture.models.agent.build import agent_for
from viticulture.models.agent.generalized_conv import GeneralizedConv
from viticulture.models.agent.shared_agent import SharedAgent, SharedConv, SharedMlp, shared_agent_for
from viticulture.models.students import count, create_student
from viticulture.optim import Optim

Load = Callable[[str], Golden]
NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())["bootstrapping_vits"]


def vit(**options: Any) -> VisionTransformer:
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 6, "mlp_ratio": 2}
    return VisionTransformer(num_classes=3, **{**sizes, **options})


def noise(*shape: int, seed: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def agents_loss(agent: SharedAgent, images: Tensor) -> Tensor:
    """Return a loss that reaches every weight of the agent."""
    logits, maps = agent.forward_with_features(images)
    return logits.square().sum() + sum((found.square().mean() for found in maps), logits.new_zeros(()))


@pytest.mark.parametrize("heads", [6, 9])
def test_conv_is_the_official_shared_convolution(golden: Load, heads: int) -> None:
    """Output and gradients of the authors' SharedConv: value rows, output matrix and bias; q and k get none."""
    data = golden(f"boot_shared_conv_H{heads}")
    dim = 2 * heads
    attn = Attention(dim, heads, qkv_bias=True)
    weights = {"qkv": "linear_qkv", "proj": "linear_out"}
    attn.load_state_dict({f"{ours}.{k}": data[f"w/{n}.{k}"] for ours, n in weights.items() for k in ("weight", "bias")})
    conv, x = SharedConv(attn), data["in/x"].clone().requires_grad_()
    y = conv(x)
    assert error(y, data["out/y"]) < 1e-5
    (y * data["in/c"]).sum().backward()
    assert x.grad is not None
    assert error(x.grad, data["gin/x"]) < 1e-5
    assert error(conv.values.grad, data["grad/linear_qkv.weight"][2 * dim :]) < 1e-5
    assert not data["grad/linear_qkv.weight"][: 2 * dim].any()
    assert error(conv.weight.grad, data["grad/linear_out.weight"]) < 1e-5
    assert error(conv.bias.grad, data["grad/linear_out.bias"]) < 1e-5
    assert attn.qkv.weight.grad is None


def test_mlp_is_the_official_shared_mlp(golden: Load) -> None:
    data = golden("boot_shared_mlp")
    mlp = Mlp(8, 16)
    mlp.load_state_dict({f"fc{i}.{k}": data[f"w/linear{i}.{k}"] for i in (1, 2) for k in ("weight", "bias")})
    assert error(SharedMlp(mlp, 0.0)(data["in/x"]), data["out/y"]) < 1e-5


def test_it_is_the_official_shared_agent(golden: Load) -> None:
    """Logits and maps of the agent in the authors' shared training step, batch statistics included."""
    data = golden("boot_shared_step_prenorm")
    student = vit(img_size=64, patch_size=16, embed_dim=18, depth=3, num_heads=9)
    student.reset_classifier(5)
    agent = shared_agent_for(student, data_spec(5, 64, 64), AgentShape()).train()
    agent.stem = ResStem(Sizes(embed_dim=18), 6, 3, "usual")  # narrowed as in the reference
    students, agents = both(data.part("w/"))
    student.load_state_dict(students)
    missing, unexpected = agent.load_state_dict(agents, strict=False)
    assert not unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing)
    logits, maps = agent.forward_with_features(data["in/x"])
    assert error(logits, data["out/logits_cnn"]) < 1e-4
    for block, found in enumerate(maps):
        assert error(found, data[f"out/feat_cnn{block}"]) < 1e-4


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 9, 12])
def test_conv_has_taps_of_values_times_output(heads: int) -> None:
    """Eq. (4): CONV whose tap h is W^V_h W^O_h, and the same gradients through those products."""
    attn = Attention(36, heads, qkv_bias=True).double()
    shared, x = SharedConv(attn), noise(2, 36, 4, 5, dtype=torch.float64)
    values, out = (weight.detach().clone().requires_grad_() for weight in (attn.qkv.weight[72:], attn.proj.weight))
    taps = torch.einsum("ohk,hki->oih", out.unflatten(1, (heads, -1)), values.unflatten(0, (heads, -1)))
    conv = GeneralizedConv(36, heads).double()
    expected = torch.func.functional_call(conv, {"weight": taps, "bias": attn.proj.bias}, (x,))
    found = shared(x)
    torch.testing.assert_close(found, expected)
    cotangent = noise(*found.shape, seed=1, dtype=torch.float64)
    ours = torch.autograd.grad((found * cotangent).sum(), [shared.values, shared.weight])
    theirs = torch.autograd.grad((expected * cotangent).sum(), [values, out])
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("heads", [3, 4, 6, 9])
def test_attention_to_neighbors_is_conv(heads: int) -> None:
    """Eq. (5): y_err = sum_h (Phi_h - Psi_h) X W^V_h W^O_h vanishes for attention matrices Phi_h."""
    rows, columns, dim = 4, 3, 36
    attn, x = Attention(dim, heads, qkv_bias=True).double(), noise(2, dim, rows, columns, dtype=torch.float64)
    nn.init.zeros_(attn.qkv.bias)
    tokens = x.flatten(2).mT  # [B, n, D]
    q, k, v = attn.qkv(tokens).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, h, n, d]
    psi, phi = (attn.scale * q @ k.mT).softmax(-1), neighbor_matrices(heads, rows, columns)

    def mixed(matrices: Tensor) -> Tensor:
        return attn.proj((matrices @ v).transpose(1, 2).flatten(2))

    conv = SharedConv(attn)(x).flatten(2).mT
    torch.testing.assert_close(mixed(psi), attn(tokens))
    torch.testing.assert_close(mixed(phi.expand_as(psi)), conv)
    torch.testing.assert_close(attn(tokens) - conv, mixed(psi - phi) - attn.proj.bias)


def storages(module: nn.Module) -> dict[int, int]:
    """Return the bytes of every storage that parameters and buffers lie on."""
    tensors = [*module.parameters(), *module.buffers()]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


def test_there_is_one_set_of_shared_weights() -> None:
    student = vit()
    agent = shared_agent_for(student, data_spec())
    block, conv, mlp = student.blocks[1], agent.blocks[1].conv, agent.blocks[1].mlp
    assert conv.values.data_ptr() == block.attn.qkv.weight[24:].data_ptr()
    assert conv.values.shape == (12, 12)
    assert conv.weight.data_ptr() == block.attn.proj.weight.data_ptr()
    assert conv.bias.data_ptr() == block.attn.proj.bias.data_ptr()
    assert mlp.fc1_weight.data_ptr() == block.mlp.fc1.weight.data_ptr()
    assert mlp.fc2_bias.data_ptr() == block.mlp.fc2.bias.data_ptr()

    own = {name: p for name, p in agent.named_parameters() if p.untyped_storage().data_ptr() not in storages(student)}
    assert own.keys() == {name for name in agent.state_dict() if "running" not in name and "batches" not in name}
    assert all(name.startswith(("stem.", "norm.", "head.")) or ".norm" in name for name in own)
    together = nn.ModuleDict({"student": student, "agent": agent})
    kept = sum(tensor.nbytes for tensor in [*own.values(), *agent.buffers()])
    assert sum(storages(together).values()) == sum(storages(student).values()) + kept

    names = [name for group in Optim().groups(student, agent) for name, _ in group["params"]]
    assert sorted(names) == sorted([*dict(student.named_parameters()), *(f"guides.{name}" for name in own)])


def test_the_agent_follows_the_students_weights() -> None:
    student = vit()
    agent, images = shared_agent_for(student, data_spec()).eval(), noise(2, 3, 32, 32)
    before = agent(images)
    optim = Optim(lr=0.1)
    optimizer = optim.build(optim.groups(student))
    student(images).square().sum().backward()
    optimizer.step()
    after = agent(images)
    assert not torch.allclose(before, after, rtol=1e-2)
    other = vit()
    student.load_state_dict(other.state_dict())
    apart = shared_agent_for(other, data_spec()).eval()
    apart.load_state_dict(agent.state_dict())
    torch.testing.assert_close(agent(images), apart(images))


def test_one_backward_pass_leaves_two_gradients() -> None:
    student = vit().double()
    agent = shared_agent_for(student, data_spec()).double().train()
    images = noise(3, 3, 32, 32, dtype=torch.float64)
    (student(images).square().sum() + agents_loss(agent, images)).backward()
    students = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
    pairs = list(agent.gradients())
    agents = [theirs.clone() for _, theirs in pairs]
    assert len(pairs) == 2 * (3 + 4)

    student.zero_grad()
    student(images).square().sum().backward()
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(students[name], parameter.grad)
    student.zero_grad()
    agent.zero_grad()
    agents_loss(agent, images).backward()
    for (_, again), before in zip(agent.gradients(), agents, strict=True):
        torch.testing.assert_close(again, before)

    for parameter in student.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for number, (ours, _) in enumerate(agent.gradients(), start=1):
        ours.fill_(number)
    qkv = student.blocks[0].attn.qkv.weight.grad
    assert not qkv[:24].any()
    assert (qkv[24:] == 1).all()
    filled = {name: float(p.grad.flatten()[-1]) for name, p in student.named_parameters() if p.grad.any()}
    inside = ["attn.qkv.weight", "attn.proj.weight", "attn.proj.bias"]
    inside += ("mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias")
    assert filled == {f"blocks.{b}.{name}": 7.0 * b + k for b in (0, 1) for k, name in enumerate(inside, start=1)}
    agent.forget_gradients()
    assert list(agent.gradients()) == []
    assert agent.head.weight.grad is not None


def test_both_gradients_together_are_that_of_shared_weights() -> None:
    """(L(w + e d) - L(w - e d)) / 2 e = <g_V + g_A, d> in a direction d of the shared weights."""
    student = vit().double()
    agent = shared_agent_for(student, data_spec()).double().eval()
    images, weight = noise(2, 3, 32, 32, dtype=torch.float64), student.blocks[0].attn.qkv.weight
    direction = torch.zeros_like(weight)
    direction[24:] = noise(12, 12, dtype=torch.float64)

    def loss() -> Tensor:
        return student(images).square().sum() + agents_loss(agent, images)

    loss().backward()
    for ours, theirs in agent.gradients():
        ours.add_(theirs)
    slope = (weight.grad * direction).sum()
    ends = []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            weight.add_(direction, alpha=step)
            ends.append(loss())
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-5, slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "move",
    [
        lambda both: both.double(),
        lambda both: both.to(torch.bfloat16).float(),
        lambda both: both.to(memory_format=torch.channels_last),
        lambda both: both.to(torch.device("cpu")),
        copy.deepcopy,
        lambda both: pickle.loads(pickle.dumps(both)),
        lambda both: both.share_memory(),
    ],
)
def test_weights_stay_shared_after_moves_casts_and_copies(move: Callable[[nn.ModuleDict], nn.ModuleDict]) -> None:
    own = vit()
    pair = nn.ModuleDict({"student": own, "agent": shared_agent_for(own, data_spec())})
    agents_loss(pair["agent"], noise(2, 3, 32, 32)).backward()
    old, before = pair["student"], len(storages(pair))
    pair = move(pair)
    assert list(pair["agent"].gradients()) == []  # they were those of another place
    student, agent = pair["student"], pair["agent"]
    assert len(storages(pair)) == before
    attn, conv = student.blocks[0].attn, agent.blocks[0].conv
    assert conv.values.data_ptr() == attn.qkv.weight[24:].data_ptr()
    assert conv.values.dtype == attn.qkv.weight.dtype == conv.moves.dtype
    with torch.no_grad():
        attn.qkv.weight.zero_()
    assert not conv.values.any()
    assert old is student or old.blocks[0].attn.qkv.weight.any()
    assert agent(noise(2, 3, 32, 32).to(conv.values.dtype)).shape == (2, 3)


def test_the_state_dict_holds_the_agents_parameters_alone() -> None:
    student, other = vit(), vit()
    agent, target = shared_agent_for(student, data_spec()), shared_agent_for(other, data_spec())
    before = copy.deepcopy(other.state_dict())
    target.load_state_dict(agent.state_dict())
    torch.testing.assert_close(target.head.weight, agent.head.weight)
    torch.testing.assert_close(dict(other.state_dict()), dict(before), rtol=0, atol=0)
    method = nn.ModuleDict({"student": student, "agent": agent})
    again = nn.ModuleDict({"student": other, "agent": target})
    again.load_state_dict(method.state_dict())
    images = noise(2, 3, 32, 32)
    torch.testing.assert_close(again["agent"].eval()(images), agent.eval()(images))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layout_precision_and_compilation_change_no_result(norm: Any, backend: str) -> None:
    student = vit(embed_dim=18, num_heads=9)
    agent = shared_agent_for(student, data_spec(), AgentShape(norm=norm)).train()
    images = noise(4, 3, 32, 32)
    agents_loss(agent, images).backward()
    expected = [theirs.clone() for _, theirs in agent.gradients()]
    agent.forget_gradients()
    logits, maps = torch.compile(agent.forward_with_features, fullgraph=True, backend=backend)(
        images.contiguous(memory_format=torch.channels_last)
    )
    (logits.square().sum() + sum(found.square().mean() for found in maps)).backward()
    torch.testing.assert_close([theirs for _, theirs in agent.gradients()], expected, rtol=1e-3, atol=1e-4)
    agent.forget_gradients()
    with torch.autocast("cpu", torch.bfloat16):
        half = agent.eval()(images)
        agents_loss(agent.train(), images).float().backward()
    torch.testing.assert_close(half.float(), agent.eval()(images), rtol=0.1, atol=0.1)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in agent.parameters())


def test_weights_frozen_in_the_student_get_no_gradient_of_the_agent() -> None:
    student = vit()
    student.blocks[0].mlp.fc1.requires_grad_(False)
    agent = shared_agent_for(student, data_spec())
    agents_loss(agent, noise(2, 3, 32, 32)).backward()
    assert len(list(agent.gradients())) == 2 * 7 - 2
    assert agent.blocks[0].mlp.fc1_weight.grad is None


def test_processes_reduce_the_second_gradients(tmp_path: Path) -> None:
    student = vit()
    agent, images = shared_agent_for(student, data_spec()).train(), noise(2, 3, 32, 32)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.agent = student, agent

        def forward(self, x: Tensor) -> Tensor:
            return self.student(x).square().sum() + agents_loss(self.agent, x)

    module = Both()
    module(images).backward()
    alone = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        DistributedDataParallel(module)(images).backward()
    finally:
        dist.destroy_process_group()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, alone[name])
    assert agent.blocks[0].conv.values.data_ptr() == student.blocks[0].attn.qkv.weight[24:].data_ptr()


def test_dropout_takes_the_students_rates_and_both_branches() -> None:
    student = create_student("vit_small", data_spec(), 4, {"depth": 2})
    for shape, rate in ((AgentShape(), 0.1), (AgentShape(dropout=0.3), 0.3), (AgentShape(dropout=0.0), 0.0)):
        block = shared_agent_for(student, data_spec(), shape).blocks[1]
        assert (block.drop.p, block.mlp.drop.p) == (rate, rate)
    block = shared_agent_for(student, data_spec(), AgentShape(dropout=1 - 1e-9)).train().blocks[0]
    x = noise(2, 288, 4, 4)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    ("entry", "name", "shape"),
    [
        ("Shared S base (100 classes)", "vit_small", AgentShape(stem="plain")),
        ("Shared S res-like (100 classes)", "vit_small", AgentShape()),
        ("Shared B res-like (100 classes)", "vit_base", AgentShape(norm="post", pool_after=[2, 8])),
    ],
)
def test_parameters_are_counted_as_in_the_paper(entry: str, name: str, shape: AgentShape) -> None:
    """To four decimals of a million; shared ones are whole attention layers and MLPs: q, k and all biases, too."""
    numbers, asked = NUMBERS[entry], data_spec(100, 224, 224)
    with torch.device("meta"):
        student = timm.create_model(name, num_classes=100, img_size=224, patch_size=16)
        agent = shared_agent_for(student, asked, shape)
        own = agent_for(student, asked, shape)
    shared = {f"{layer}.{p}" for layer, m in agent.named_modules() for p in getattr(m, "shared", {})}
    private = sum(p.numel() for name, p in agent.named_parameters() if name not in shared)
    whole = sum(p.numel() for block in student.blocks for part in (block.attn, block.mlp) for p in part.parameters())
    vits = sum(p.numel() for p in student.parameters())
    counted = {"vit_params": vits, "agent_private_params": private, "shared_params": whole}
    for key, number in {**counted, "unique_params": vits + private}.items():
        assert number / 1e6 == pytest.approx(numbers[key], abs=5.1e-5), key
    assert count(agent, (224, 224))[1] < 0.9 * count(own, (224, 224))[1]


def test_qk_norm_and_missing_biases_are_supported() -> None:
    student = vit(qk_norm=True, qkv_bias=False, proj_bias=False)
    agent = shared_agent_for(student, data_spec())
    assert set(agent.blocks[0].conv.shared) == {"values", "weight"}
    assert set(agent.blocks[0].mlp.shared) == {"fc1_weight", "fc2_weight"}
    x, weights = noise(2, 12, 4, 4), dict(student.blocks[0].mlp.named_parameters())
    expected = F.linear(F.gelu(F.linear(x.permute(0, 2, 3, 1), weights["fc1.weight"])), weights["fc2.weight"])
    torch.testing.assert_close(agent.eval().blocks[0].mlp(x), expected.permute(0, 3, 1, 2))
    assert agent(noise(2, 3, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize(
    ("student", "words"),
    [
        (
            lambda: create_student("dhvt_nano", data_spec(), 4),
            "DHVT: its blocks are DHVTBlock; give the agent separate weights",
        ),
        (lambda: vit(init_values=1e-5), "VisionTransformer: it has LayerScale"),
        (lambda: vit(mlp_layer=SwiGLU), "its MLP is SwiGLU"),
        (lambda: vit(act_layer=nn.ReLU), "its MLP has ReLU, no GELU"),
        (lambda: vit(scale_mlp_norm=True), "its MLP has a norm"),
        (lambda: vit(scale_attn_norm=True), "its attention normalizes its output"),
        (lambda: vit(block_fn=ParallelScalingBlock), "made from a ViT"),
        (lambda: timm.create_model("resnet10t"), "made from a ViT"),
    ],
)
def test_weights_that_cannot_be_shared_are_refused(student: Callable[[], nn.Module], words: str) -> None:
    refused(words, lambda: shared_agent_for(student(), data_spec()))
