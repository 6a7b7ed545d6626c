# SPDX-License-Identifier: Apache-2.0
"""DHVT follows timm's interfaces, and its attention can be read."""

from collections.abc import Callable
from pathlib import Path

import timm
import torch
from timm.optim._param_groups import param_groups_layer_decay, param_groups_weight_decay
from torch import Tensor

import viticulture.models.students  # noqa: F401  registers them
from conftest import Golden
from networks import random_images, randomized, tiny
from viticulture.models.dhvt.layers import HIMHSA
from viticulture.models.taps import Taps

Load = Callable[[str], Golden]


def test_an_official_checkpoint_loads_through_timm(golden: Load, tmp_path: Path) -> None:
    """`pretrained` with a file of the authors' layout ({"model": ...}, 1x1 kernels), strictly."""
    data, file = golden("dhvt_model_p4"), tmp_path / "dhvt.pth"
    counters = {key: v for key, v in tiny().state_dict().items() if key.endswith("num_batches_tracked")}
    torch.save({"model": data.part("w/") | counters, "epoch": 299}, file)
    model = timm.create_model(
        "dhvt_tiny_cifar_patch4",
        pretrained=True,
        pretrained_cfg_overlay={"file": str(file), "num_classes": 7},
        embed_dim=16,
        depth=2,
    )
    torch.testing.assert_close(model.eval()(data["in/x"]), data["out/eval"], rtol=1e-4, atol=1e-5)


def test_intermediates_follow_timm() -> None:
    model, x = randomized(tiny(distilled=True)).eval(), random_images(2, 3, 12, 20)
    outputs: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _inputs, y: outputs.append(y))
    logits = model(x)
    blocks = outputs[:2]
    final, taken = model.forward_intermediates(x, output_fmt="NLC", return_prefix_tokens=True, norm=True)
    for block, (patches, prefix) in zip(blocks, taken, strict=True):
        assert prefix.shape[1] == model.num_prefix_tokens == 2
        torch.testing.assert_close(torch.cat([prefix, patches], dim=1), model.norm(block))
    assert torch.equal(final, model.forward_features(x))
    assert torch.equal(model.forward_head(final), logits)
    (maps,) = model.forward_intermediates(x, [-2], stop_early=True, intermediates_only=True)
    assert torch.equal(maps.flatten(2).mT, blocks[0][:, 2:])
    assert maps.shape == (2, 16, 3, 5)

    for name in ("dhvt_tiny_cifar_patch4", "dhvt_small_cifar_patch4"):  # timm takes keys out of what it is given
        features = timm.create_model(name, features_only=True, out_indices=[1], embed_dim=16, depth=2)
        assert features.feature_info.reduction() == [4]
        assert features(x)[0].shape == (2, 16, 3, 5)


def test_the_classifier_can_be_replaced_or_removed() -> None:
    model, x = tiny(distilled=True).eval(), random_images(2, 3, 8, 8)
    features = model.forward_head(model.forward_features(x), pre_logits=True)
    model.reset_classifier(3)
    assert [head.out_features for head in model.get_classifier()] == [3, 3]
    assert model(x).shape == (2, 3)
    model.reset_classifier(0)
    torch.testing.assert_close(model(x), features)


def test_weight_decay_and_layer_rates_follow_the_authors() -> None:
    """No decay for vectors and the class token; layer-wise rates: stem, a group per block, final norm, head."""
    model = tiny(distilled=True)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    free, decayed = ({names[id(p)] for p in group["params"]} for group in groups)
    assert {"cls_token", "dist_token", "norm.weight", "blocks.0.mlp.bn1.weight", "head.bias"} <= free
    assert {"patch_embed.pre_affine.alpha", "patch_embed.post_affine.beta", "blocks.0.attn.pos_embed"} <= decayed
    assert free == {name for name, p in model.named_parameters() if p.ndim == 1 or name in ("cls_token", "dist_token")}

    scales = {
        names[id(p)]: group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.5)
        for p in group["params"]
    }
    assert scales["cls_token"] == scales["dist_token"] == scales["patch_embed.proj.0.0.weight"] == 0.125
    assert scales["blocks.0.mlp.conv2.weight"] == 0.25
    assert scales["blocks.1.attn.qkv.weight"] == 0.5
    assert scales["head.weight"] == 1


def test_the_attention_read_is_the_layers() -> None:
    """Probabilities times values, projected, is the layer's output; taps read the same scores."""
    attn = randomized(HIMHSA(16, 4)).eval()
    x = random_images(2, 13, 16)
    q, k, v = attn.queries_keys_values(x)
    mixed = (attn.scale * q @ k.transpose(-2, -1)).softmax(-1) @ v
    out = attn.proj(mixed.transpose(1, 2).flatten(2))
    out[:, :1] += out[:, 13:].mean(1, keepdim=True)
    torch.testing.assert_close(out[:, :13], attn(x), rtol=1e-4, atol=1e-5)

    model, images = randomized(tiny()).eval(), random_images(2, 3, 12, 20)
    readings = Taps(model, frozenset({"attention"}))(images)
    for reading in readings.attention:
        assert reading.scores().shape == (2, 4, 1 + 15 + 4, 1 + 15 + 4)
        torch.testing.assert_close(reading.class_scores(), reading.scores()[:, :, 0, 1:16])


def test_memory_layouts_change_no_result() -> None:
    model, x = randomized(tiny()).eval(), random_images(2, 3, 12, 20)
    logits = model(x)
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), logits)
    torch.testing.assert_close(model.to(memory_format=torch.channels_last)(x), logits, rtol=1e-4, atol=1e-4)
