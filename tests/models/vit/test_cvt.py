# SPDX-License-Identifier: Apache-2.0
"""CvT-13: Wu et al., arXiv:2103.15808."""

import pytest
import torch
import torch.nn.functional as F

from networks import data_spec
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import count, create_student
from viticulture.models.taps import features
from viticulture.models.vit.cvt import CvT, CvTBlock, CvTStage
from viticulture.optim.optim import outer_parameters


@pytest.mark.parametrize(("classes", "parameters"), [(345, "19.7"), pytest.param(1000, "20.0", marks=pytest.mark.slow)])
def test_it_has_the_papers_size(classes: int, parameters: str) -> None:
    """19.7 M on DomainNet (DHVT's supplement, Table 7), 20.0 M on ImageNet (Table 9), and 4.5 G MACs."""
    with torch.device("meta"):
        student = create_student("cvt_13", data_spec(classes, 224, 224))
    known, macs = count(student, (224, 224))
    assert f"{known / 1e6:.1f}" == parameters
    assert 4.5e9 < macs < 4.6e9


def test_it_names_its_stem_and_its_head() -> None:
    with torch.device("meta"):
        student = create_student("cvt_13", DataSpec(("a", "b"), (64, 64), (0.5,) * 3, (0.5,) * 3))
    assert outer_parameters(student) == {"embeds.0.weight", "head.weight", "head.bias"}


def test_attention_equals_torchs_on_every_second_row_and_column() -> None:
    """With identity convolutions, against torch's multi-head attention of the same weights."""
    torch.manual_seed(0)
    block, width, heads = CvTBlock(12, 3, 0.0).eval().double(), 12, 3
    for projection in (block.q, block.k, block.v):
        torch.nn.init.dirac_(projection.conv.weight, groups=width)
        projection.norm.eps = 1e-30
    x = torch.randn(2, 1 + 4 * 6, width, dtype=torch.float64)
    half = torch.arange(24).unflatten(0, (4, 6))[::2, ::2].flatten() + 1
    seen = torch.cat([x[:, :1], x[:, half]], 1)
    weights = torch.cat([part.linear.weight for part in (block.q, block.k, block.v)])
    biases = torch.cat([part.linear.bias for part in (block.q, block.k, block.v)])
    expected, _ = F.multi_head_attention_forward(
        x.transpose(0, 1), seen.transpose(0, 1), seen.transpose(0, 1), width, heads, weights, biases, None, None, False,
        0.0, block.out.weight, block.out.bias,
    )  # fmt: skip
    torch.testing.assert_close(block.attention(x, (4, 6)), expected.transpose(0, 1))


def test_features_are_its_classifiers_input() -> None:
    torch.manual_seed(0)
    net = CvT((CvTStage(7, 4, 8, 1, 1), CvTStage(3, 2, 12, 2, 3)), num_classes=3).eval()
    torch.nn.init.normal_(net.norm.weight)
    images = torch.randn(2, 3, 32, 48)
    found = features(net, images)
    assert set(found) == {"mean"}
    assert torch.equal(net.head(found["mean"]), net(images))


def test_every_parameter_is_trained_and_images_may_be_oblong() -> None:
    """But for the keys' biases, which a softmax ignores, and the last block's queries of patches."""
    torch.manual_seed(0)
    net = CvT((CvTStage(7, 4, 8, 1, 1), CvTStage(3, 2, 12, 2, 3)), num_classes=3, drop_path_rate=0.0)
    logits = net(torch.randn(2, 3, 32, 48))
    assert logits.shape == (2, 3)
    logits.square().sum().backward()
    dead = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    still = ("k.linear.bias", "stages.1.1.q.conv.weight", "stages.1.1.q.norm.weight", "stages.1.1.q.norm.bias")
    assert [name for name in dead if not name.endswith(still)] == []
