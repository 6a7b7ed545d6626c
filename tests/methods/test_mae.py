# SPDX-License-Identifier: Apache-2.0
"""The masked autoencoder equals the authors': forward and backward, tiny and full size; masks, cost, errors."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from conftest import GOLDEN, Golden
from formula_fill import fill, image
from mae_students import HALF, method, ours, vit
from networks import error
from refusals import refused
from viticulture.methods.mae import MAE, Decoder, encode, split, targets
from viticulture.methods.method import Setup
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import blueprint, create_student
from viticulture.models.vit.patches import check, patchify, rows, sincos, unpatchify

Load = Callable[[str], Golden]
NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())["mae_lite"]


def reordered(patches: Tensor, patch: int) -> Tensor:
    """Reorder patches from channel by channel to the authors' pixel by pixel; [..., 3 p p]."""
    return patches.unflatten(-1, (3, patch, patch)).movedim(-3, -1).flatten(-3)


def test_patches_and_back(golden: Load) -> None:
    data = golden("mae_patchify")
    assert torch.equal(reordered(patchify(data["in/img"], (8, 8)), 8), data["out/patches"])
    images = torch.arange(2 * 3 * 8 * 12.0).reshape(2, 3, 8, 12)
    assert torch.equal(unpatchify(patchify(images, (4, 2)), (2, 6), (4, 2)), images)


def test_positions_are_the_authors_and_distinguish_rows_from_columns(golden: Load) -> None:
    data = golden("mae_pos_embed")
    for name, side, width in (("d24_g4", 4, 24), ("d16_g3", 3, 16), ("d192_g2", 2, 192)):
        torch.testing.assert_close(sincos((side, side), width)[0], data[f"out/{name}"].float(), rtol=1e-6, atol=1e-6)
    square, oblong = (sincos(grid, 16, prefix=2)[0] for grid in ((5, 5), (2, 5)))
    assert torch.equal(oblong, square[:12])
    assert torch.equal(
        sincos((5, 3), 8, 0)[0].unflatten(0, (5, 3)), sincos((5, 5), 8, 0)[0].unflatten(0, (5, 5))[:, :3]
    )


def test_it_is_the_official_code(golden: Load) -> None:
    """Latent, predictions, loss and every gradient for the authors' weights and noise."""
    data = golden("mae_forward_normpix1")
    student = vit()
    mae = method(student)
    assert not student.pos_embed.requires_grad
    mae.auxiliary["decoder"] = Decoder(24, (4, 4), 192, 16, depth=1, heads=2, mlp_ratio=2)
    encoder, decoder = ours(data.part("w/"))
    student.load_state_dict(encoder)
    mae.auxiliary["decoder"].load_state_dict(decoder)
    torch.testing.assert_close(
        mae.auxiliary["decoder"].positions, data["w/decoder_pos_embed"][0, 1:], rtol=1e-6, atol=1e-6
    )

    kept, masked = split(data["in/noise"], 0.75)
    assert torch.equal(torch.cat([kept, masked], 1), data["in/ids_shuffle"].long())
    latent = encode(student, data["in/img"], kept)
    assert error(latent, data["out/latent"]) < 1e-5
    painted = mae.auxiliary["decoder"](latent, kept, masked)
    assert error(reordered(painted, 8), rows(data["out/pred"], masked)) < 1e-5
    (loss,) = mae.losses({"image": data["in/img"], "noise": data["in/noise"]}).values()
    torch.testing.assert_close(loss, data["out/loss"], rtol=1e-5, atol=0)
    loss.backward()
    theirs = list(ours(data.part("grad/")))
    for module, gradients in zip((student, mae.auxiliary["decoder"]), theirs, strict=True):
        found = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
        assert found.keys() == gradients.keys()
        for name, gradient in found.items():
            assert error(gradient, gradients[name]) < 1e-4, name


def test_mae_tiny_is_the_official_one(golden: Load) -> None:
    """Full size, with weights by formula: loss, class row of the encoder's output, prediction of a masked patch."""
    data = golden("full_mae_tiny")
    mae = method(create_student("mae_tiny", DataSpec((), (224, 224), HALF, HALF), 16), 224)
    encoder, decoder = ours(fill([entry[:2] for entry in data.about["config"]["state"]]))
    encoder.pop("pos_embed")
    assert mae.student.load_state_dict(encoder, strict=False).missing_keys == ["pos_embed"]
    mae.auxiliary["decoder"].load_state_dict(decoder)
    images, order = image((2, 3, 224, 224)), data["in/ids_shuffle"].long()
    with torch.no_grad():
        latent = encode(check(mae.student), images, order[:, :49])
        painted = mae.auxiliary["decoder"](latent, order[:, :49], order[:, 49:])
        (loss,) = mae.losses({"image": images, "noise": order.argsort(1).float()}).values()
    assert error(latent[:, 0], data["out/latent_cls"]) < 1e-3
    place = (order[1, 49:] == 0).nonzero().item()  # the second image's first patch is masked
    assert error(reordered(painted[1, place], 16), data["out/pred_patch0"][1]) < 1e-3
    torch.testing.assert_close(loss, data["out/loss"], rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["mae_vit_classifier_gap1", "full_mae_vit_tiny_gap"])
def test_the_fine_tuning_form_is_the_official_one(golden: Load, name: str) -> None:
    """Mean of the patches without the class token, then fc_norm, then the head."""
    data, pooled = golden(name), {"global_pool": "avg"}
    if name.startswith("full"):
        student = create_student("mae_tiny", DataSpec(tuple(map(str, range(1000))), (224, 224), HALF, HALF), 16, pooled)
        student.load_state_dict(fill(data.about["config"]["state"]))
        with torch.no_grad():
            assert error(student(image((2, 3, 224, 224))), data["out/logits"]) < 1e-3
        return
    student = vit(num_classes=5, **pooled)
    student.load_state_dict(data.part("w/"))
    assert error(student(data["in/img"]), data["out/logits"]) < 1e-5


@pytest.mark.parametrize(
    ("size", "decoder", "depth"),
    [("tiny", 96, 1), ("small", 192, 1), pytest.param("base", 512, 8, marks=pytest.mark.slow)],
)
def test_parameters_and_macs_are_the_official_ones(size: str, decoder: int, depth: int) -> None:
    """After adding what is not computed here: embedding of masked patches, last layer of visible ones."""
    values, about = 768, NUMBERS[f"mae_vit_{size}_patch16"]
    with torch.device("meta"):
        student = check(timm.create_model(f"mae_{size}", num_classes=0))
        painter = Decoder(student.embed_dim, (14, 14), values, decoder, depth, decoder // 32)
        images, order = torch.empty(1, 3, 224, 224), torch.empty(1, 196, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        painter(encode(student, images, order[:, :49]), order[:, :49], order[:, 49:])
    encoder = sum(p.numel() for p in student.parameters())
    own = sum(p.numel() for p in painter.parameters())
    tables = 197 * (student.embed_dim + decoder)
    assert encoder / 1e6 == pytest.approx(about["params_encoder_incl_pos"], abs=5.1e-5)
    assert (encoder + own + 197 * decoder) / 1e6 == pytest.approx(about["params_all"], abs=5.1e-5)
    assert (encoder + own + 197 * decoder - tables) / 1e6 == pytest.approx(about["params_trainable"], abs=5.1e-5)
    spared = 147 * values * student.embed_dim + 50 * (values * decoder + 8 * decoder**2)
    counted = counter.get_total_flops() / 2
    assert (counted + spared) / 1e9 == pytest.approx(about["gmacs_pretrain_mask75"], abs=5.1e-5)
    if size == "tiny":
        assert counted / 1e9 == pytest.approx(0.321, abs=0.001)


def test_parameters_with_a_head_are_the_official_ones() -> None:
    for classes in (100, 1000):
        about = NUMBERS[f"vit_tiny_patch16 12 heads, {classes} classes"]
        with torch.device("meta"):
            student = timm.create_model("mae_tiny", num_classes=classes, global_pool="avg")
        assert sum(p.numel() for p in student.parameters()) / 1e6 == pytest.approx(about["params"], abs=5.1e-5)


def test_the_encoder_never_computes_a_masked_patch() -> None:
    """Masked pixels may be NaN; with all patches visible it is timm's forward pass."""
    for options in (
        {},
        {"reg_tokens": 2, "pre_norm": True},
        {"no_embed_class": True},
        {"class_token": False, "global_pool": "avg"},
    ):
        student = vit((16, 24), 4, **options)
        nn.init.normal_(student.pos_embed)
        images = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))
        kept, masked = split(torch.rand(2, 24, generator=torch.Generator().manual_seed(1)), 0.75)
        everything = torch.cat([kept, masked], 1)
        prefix = student.num_prefix_tokens
        whole = student.fc_norm(student.forward_features(images))
        ordered = torch.cat([whole[:, :prefix], rows(whole[:, prefix:], everything)], 1)
        torch.testing.assert_close(encode(student, images, everything), ordered, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(encode(student, images), whole, rtol=1e-4, atol=1e-5)
        patches = patchify(images, (4, 4)).scatter(1, masked[..., None].expand(-1, -1, 48), torch.nan)
        broken = unpatchify(patches, (4, 6), (4, 4))
        assert torch.equal(encode(student, broken, kept), encode(student, images, kept))


def test_targets_are_standardized_patches_or_pixels() -> None:
    """(x - mean) / sqrt(unbiased var + 1e-6); a patch of one color gives zeros and no NaN."""
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images[..., :4, :4] = 0.3
    numbers = torch.tensor([[3, 0]])
    images[..., 4:, 4:] *= 1e-3  # so faint that the epsilon counts
    pixels = torch.stack([images[0, :, 4:, 4:], images[0, :, :4, :4]]).flatten(1)
    assert torch.equal(targets(images, (4, 4), numbers, patch_norm=False)[0], pixels)
    expected = (pixels - pixels.mean(1, keepdim=True)) / (pixels.var(1, correction=1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(targets(images, (4, 4), numbers)[0], expected, rtol=1e-5, atol=1e-4)


def test_the_loss_of_reconstructing_zeros() -> None:
    """(n - 1) / n for n values a patch: standardized by unbiased variance."""
    mae = method(vit(16, 4), 16)
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(mae.metrics({"image": images})["loss"], mae.metrics({"image": images})["loss"])
    nn.init.zeros_(mae.auxiliary["decoder"].predict.weight)
    assert mae.metrics({"image": images})["loss"].item() == pytest.approx(47 / 48, rel=1e-4)


def test_initialization_is_the_authors() -> None:
    """Xavier-uniform linear layers (qkv as one matrix), zero biases, tokens of std 0.02, fixed positions."""
    student = create_student("mae_tiny", DataSpec((), (224, 224), HALF, HALF), 16, {"depth": 2})
    bounds = {"patch_embed.proj": (6 / (768 + 192)) ** 0.5, "blocks.1.attn.qkv": (6 / (192 + 576)) ** 0.5}
    bounds |= {"blocks.0.mlp.fc1": (6 / (192 + 768)) ** 0.5}
    student.requires_grad_(False)
    for name, bound in bounds.items():
        weight = student.get_submodule(name).weight
        assert weight.abs().max() <= bound
        assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert not student.blocks[1].attn.qkv.bias.any()
    assert student.cls_token.std() == pytest.approx(0.02, rel=0.3)
    assert torch.equal(student.pos_embed, sincos((14, 14), 192))
    assert student.pos_embed.std() > 0.5
    mae = method(create_student("mae_tiny", DataSpec((), (32, 32), HALF, HALF), 4), 32).requires_grad_(False)
    assert mae.auxiliary["decoder"].mask_token.std() == pytest.approx(0.02, rel=0.3)
    assert not mae.auxiliary["decoder"].predict.bias.any()


def test_initialization_as_moco_v3_or_deit() -> None:
    """MoCo-v3: q, k, v Xavier-uniform one by one; DeiT: linear layers, class token, positions of std 0.02."""
    data_spec = DataSpec((), (224, 224), HALF, HALF)
    moco, deit = (
        create_student("mae_tiny", data_spec, 16, {"depth": 2, "start": start}).requires_grad_(False)
        for start in ("moco_v3", "deit")
    )
    qkv = moco.blocks[1].attn.qkv.weight
    assert qkv.std() == pytest.approx((2 / (192 + 192)) ** 0.5, rel=0.02)
    assert moco.blocks[0].mlp.fc1.weight.std() == pytest.approx((2 / (192 + 768)) ** 0.5, rel=0.02)
    assert moco.cls_token.abs().max() < 1e-5
    assert not moco.patch_embed.proj.bias.any()
    assert torch.equal(moco.pos_embed, sincos((14, 14), 192))
    for weight in (deit.blocks[1].attn.qkv.weight, deit.blocks[0].mlp.fc2.weight, deit.pos_embed):
        assert weight.std() == pytest.approx(0.02, rel=0.03)
    assert deit.cls_token.std() == pytest.approx(0.02, rel=0.3)
    assert deit.patch_embed.proj.weight.std() == pytest.approx((1 / 768 / 3) ** 0.5, rel=0.02)
    assert blueprint(deit).arguments.keys().isdisjoint({"start"})
    refused("start", create_student, "mae_tiny", data_spec, 16, {"start": "moco"})


def test_learned_positions_are_trained() -> None:
    student = vit(16, 4)
    nn.init.normal_(student.pos_embed)
    before = student.pos_embed.detach().clone()
    mae = method(student, 16, positions="learned")
    assert torch.equal(student.pos_embed, before)
    (loss,) = mae.losses({"image": torch.randn(2, 3, 16, 16), "noise": torch.rand(2, 16)}).values()
    loss.backward()
    assert student.pos_embed.grad is not None
    assert student.pos_embed.grad.abs().sum() > 0


@pytest.mark.slow
def test_a_step_in_bfloat16_and_one_graph() -> None:
    mae = method(vit(16, 4, depth=1), 16)
    batch = {"image": torch.randn(4, 3, 16, 16), "noise": torch.rand(4, 16)}
    (exact,) = mae.losses(batch).values()
    with torch.autocast("cpu", torch.bfloat16):
        (rounded,) = mae.losses(batch).values()
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0)
    eager = mae.taps.forward
    mae.taps.compile(backend="aot_eager", fullgraph=True)
    assert mae.taps.forward is not eager
    mae.auxiliary["decoder"].compile(backend="aot_eager", fullgraph=True)
    (compiled,) = mae.losses(batch).values()
    torch.testing.assert_close(compiled, exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: method(vit(), mask_ratio=1.0), "mask_ratio.*16 patches.*got 1.0"),
        (lambda: method(vit(), mask_ratio=0.99), "mask_ratio"),
        (lambda: method(vit(), decoder_width=48), "multiple of 32, got 48"),
        (lambda: method(vit(), decoder_depth=0), "decoder_depth.*got 0"),
        (lambda: method(vit(), positions="none"), "fixed or learned"),
        (lambda: MAE(Setup(vit(4, 1, in_chans=1), DataSpec((), (4, 4), (0.5,), (0.5,)))), "patch_norm.*is one value"),
        (lambda: method(vit(patch_drop_rate=0.1)), "patch_drop_rate"),
        (lambda: method(vit(dynamic_img_size=True)), "fixed image size"),
        (lambda: method(create_student("dhvt_nano", DataSpec((), (32, 32), HALF, HALF), 4)), "plain ViT.*DHVT"),
        (lambda: method(timm.create_model("deit_tiny_distilled_patch16_224"), 224), "plain ViT.*Distilled"),
        (lambda: sincos((2, 2), 18), "multiple of 4, got 18"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    refused(message, make)
