# SPDX-License-Identifier: Apache-2.0
"""Every ablation equals a reference, or DHVT where the removed part is the identity."""

from typing import Any

import pytest
import timm
import torch
from timm.layers.attention import Attention
from timm.models import VisionTransformer
from torch import Tensor, nn

from networks import error, random_images, randomized
from refusals import refused
from viticulture.models.dhvt import ablations as ablations
from viticulture.models.dhvt.layers import DAFF, SOPE, on_map, split_prefix

GRID = (3, 5)
VIT = {"patch_embed": "linear", "attention": "mhsa", "feed_forward": "ffn", "positions": True}


def model(**options: Any) -> nn.Module:
    return timm.create_model("dhvt_tiny_cifar_patch4", embed_dim=16, depth=2, num_classes=7, **options)


def tokens() -> Tensor:
    return random_images(2, 1 + 15, 16)


def test_without_its_three_parts_it_is_timms_vit() -> None:
    """[S, Table 2], baseline: logits with copied weights, on an oblong grid and at another size."""
    ours = randomized(model(**VIT, img_size=(12, 20))).eval()
    theirs = VisionTransformer((12, 20), 4, num_classes=7, embed_dim=16, depth=2, num_heads=4, dynamic_img_size=True)
    names = {"positions.table": "pos_embed"}
    theirs.load_state_dict({names.get(key, key): value for key, value in ours.state_dict().items()})
    for size in ((12, 20), (16, 8)):
        x = random_images(2, 3, *size)
        torch.testing.assert_close(ours(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)
    attention = randomized(Attention(16, 4, qkv_bias=True))
    mhsa = ablations.MHSA(16, 4)
    mhsa.load_state_dict(attention.state_dict())
    torch.testing.assert_close(mhsa(tokens()), attention(tokens()))


def test_a_split_ffn_leaves_the_class_token_out() -> None:
    """[S, Table 2]: patches as in the FFN; the class token unchanged, or times a factor of the patches' mean."""
    x = tokens()
    for name in ("ffn_split", "ffn_split_aggregate"):
        layer = randomized(ablations.PARTS["feed_forward"][name](16, 64))
        prefix, patches = split_prefix(layer(x, GRID), GRID)
        torch.testing.assert_close(patches, layer.ffn(x, GRID)[:, 1:])
        factor = torch.ones(())
        if name == "ffn_split_aggregate":
            factor = layer.excitation(nn.functional.gelu(layer.compress(patches.mean(1, keepdim=True))))
            assert factor.std() > 0.01
        torch.testing.assert_close(prefix, x[:, :1] * factor)


def test_pooling_is_daff_with_a_convolution_of_ninths() -> None:
    """[S, Table 2, 2.2.1]: average pooling is "a deteriorated version of DWCONV", with ninths for kernels."""
    pool, daff = randomized(ablations.SplitFFNPool(16, 64)), DAFF(16, 64, norm=lambda _: nn.Identity())
    with torch.no_grad():
        for ours, theirs in ((daff.conv1, pool.fc1), (daff.conv3, pool.fc2)):
            ours.load_state_dict(theirs.state_dict())
        daff.conv2.weight.fill_(1 / 9)
        daff.conv2.bias.fill_(50)  # where GELU is the identity
        y = daff.convolve(tokens()[:, 1:].unflatten(1, GRID)).flatten(1, 2)
        shift = 50 * daff.conv3.weight.sum(1)
        torch.testing.assert_close(pool(tokens(), GRID)[:, 1:], y - shift, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(pool(tokens(), GRID)[:, :1], tokens()[:, :1])


def test_aggregation_on_all_tokens_scales_the_patches_too() -> None:
    """[S, Table 3]: DAFF's output, with its patches times the factor of the class token."""
    layer = randomized(ablations.DAFFAllTokens(16, 64)).eval()
    prefix, patches = split_prefix(layer.daff(tokens(), GRID), GRID)
    expected = torch.cat([prefix, patches * layer.daff.weigh(patches)], dim=1)
    torch.testing.assert_close(layer(tokens(), GRID), expected)


def test_without_shortcut_only_the_depthwise_convolution_remains() -> None:
    """[S, Table 3]: for a convolution that adds a constant, DAFF's patches lie twice as far from those of y = 0."""
    layer, x = randomized(ablations.DAFFNoShortcut(16, 64)).eval(), tokens()
    daff, c = layer.daff, 50.0
    with torch.no_grad():
        daff.conv2.weight.zero_()
        constant, full = layer(x, GRID)[:, 1:], daff(x, GRID)[:, 1:]
        torch.testing.assert_close(constant, constant[:1, :1].expand_as(constant))
        assert error(full, full.mean(1, keepdim=True).expand_as(full)) > 0.01

        norm = daff.bn2
        daff.conv2.weight[:, 0, 1, 1] = (norm.running_var + norm.eps).sqrt() / norm.weight
        daff.conv2.bias.copy_(norm.running_mean)
        norm.bias.fill_(c)
        nothing = on_map(daff.bn3, daff.conv3(torch.full((1, 1, 1, 64), c))).flatten(1, 2)
        once, twice = layer(x, GRID)[:, 1:] - nothing, daff(x, GRID)[:, 1:] - nothing
        torch.testing.assert_close(twice, 2 * once, rtol=1e-3, atol=1e-3)


def test_affines_start_as_the_identity() -> None:
    """[S, 2.2.2]: SOPE without affines is SOPE with alpha 1 and beta 0; it has 2 (3 + D) numbers fewer."""
    x = random_images(2, 3, 12, 20)
    torch.manual_seed(0)
    without = ablations.sope_without_affine(4, 16)
    torch.manual_seed(0)
    full = SOPE(4, 16)
    torch.testing.assert_close(without(x), full(x), rtol=0, atol=0)
    sizes = [sum(parameter.numel() for parameter in sope.parameters()) for sope in (full, without)]
    assert sizes[0] - sizes[1] == 2 * (3 + 16)


@pytest.mark.parametrize("options", [{"patch_embed": "sope_layernorm"}, {"feed_forward": "daff_layernorm"}])
def test_with_layer_norm_each_pixel_is_normalized_alone(options: dict[str, str]) -> None:
    """[S, Table 5]: no norm of SOPE, or of DAFF, mixes images; training and evaluation agree if both are replaced."""
    both = randomized(model(patch_embed="sope_layernorm", feed_forward="daff_layernorm"))
    x = random_images(3, 3, 12, 20)
    torch.testing.assert_close(both.train()(x)[:1], both.eval()(x[:1]), rtol=1e-4, atol=1e-4)
    one = model(**options)
    kinds = {
        type(m).__name__
        for part in (one.patch_embed, one.blocks[0].mlp)
        for m in part.modules()
        if "Norm" in type(m).__name__
    }
    assert kinds == {"LayerNorm2d", "BatchNorm2d"}
    norm = one.patch_embed.proj[0][1] if "patch_embed" in options else one.blocks[0].mlp.bn1
    y = norm(random_images(2, norm.weight.numel(), 3, 5) + 3)
    torch.testing.assert_close(y.mean(1), torch.zeros(2, 3, 5), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        *({"patch_embed": name} for name in ablations.PARTS["patch_embed"]),
        *({"feed_forward": name} for name in ablations.PARTS["feed_forward"]),
        {"attention": "mhsa"},
        {"num_heads": 8},
        {"positions": True},
        VIT,
        VIT | {"positions": False, "patch_embed": "sope"},
    ],
    ids=str,
)
def test_every_row_trains(options: dict[str, Any]) -> None:
    student = model(**options, distilled=True, img_size=(12, 20)).train()
    student(random_images(4, 3, 12, 20)).logsumexp(1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in student.parameters())


def test_unknown_parts_are_refused() -> None:
    refused("unknown feed_forward 'daf'; did you mean daff", model, feed_forward="daf")
    refused(r"unknown attention 'x'; valid: hi_mhsa, mhsa", model, attention="x")


def test_only_sope_may_synchronize_its_statistics() -> None:
    """SyncBatchNorm in SOPE, plain BatchNorm in DAFF, as in the authors' runs on several GPUs."""
    plain, shared = model(), model(patch_embed="sope_syncbatchnorm")
    assert {type(m) for m in shared.patch_embed.modules()} & {nn.SyncBatchNorm, nn.BatchNorm2d} == {nn.SyncBatchNorm}
    assert not any(isinstance(m, nn.SyncBatchNorm) for m in shared.blocks.modules())
    shared.load_state_dict(plain.state_dict())
    x = random_images(3, 3, 12, 20)
    torch.testing.assert_close(shared.train()(x), plain.train()(x))
