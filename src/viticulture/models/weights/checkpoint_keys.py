# SPDX-License-Identifier: Apache-2.0
"""Weights by a student's own names, out of what training scripts store.

    {"model": {...}}                                                        DeiT, and MAE with its decoder's decoder_*
    {"model": {"module.model.*", "module.tch_model.*"}}                     MAE-Lite, distilled or not
    {"state_dict": {"module.base_encoder.*", "module.momentum_encoder.*"}}  MoCo-v3; the same under "model" in MAE-Lite
    {"state_dict": {"module.encoder_q.*"}}                                  MoCo-v2, with its projector fc.0 and fc.2
    {"state_dict": {"student.*", "auxiliary.*"}}                            a checkpoint of ours
    {"state_dict": {"model._orig_mod.*"}}                                   Lightning around a compiled network
    {"student": {...}, "teacher": {"backbone.*", "head.*"}}                 DINO: the teacher, as its authors do
    {"state_dict_ema": {...}, "state_dict": {...}}                          timm: the running mean, as timm loads
    {"model": {...}, "model_ema": {...}}                                    DeiT and DHVT: `model`, as they fine-tune
    {"state_dict": {"backbone.*", "head.fc.*"}}                             mmcls, RedNet
    {"model": {"transformer.layers.*"}}, or "models.vit.*" and "models.cnn.*"   Bootstrapping ViTs

FILE#KEY takes the weights under another key. Tensors next to the network that is taken keep their names.
Where a network's module has a `checkpoint_filter_fn`, as timm's have, it translates its authors' names.
"""

import re
import sys
from typing import Any

from torch import Tensor, nn

from ...errors import UserError
from .load_matching import State

WRAPPERS = ("state_dict_ema", "state_dict", "model", "model_ema", "teacher", "student")
"""Keys under which scripts keep the weights; of several the first is taken, which is what their authors take."""
AROUND = ("module.", "_orig_mod.", "method.")  # put before every name by wrappers of a whole network
KEPT = (
    "base_encoder.",
    "encoder_q.",
    "model.",
    "student.",
    "models.vit.",
    "vit.",
    "backbone.",
)  # put before the names of one network among several
BESIDE = re.compile(  # what stands beside an encoder: of MAE, of MoCo with its projector, of MAE-Lite, of ours
    r"decoder_|mask_token|head\.(\d|mlp|last_layer)|fc\.\d|queue|models\.|(encoder_k|momentum_encoder|predictor|tch_model|attn_adapter|hidden_adapter|auxiliary|guides)\."
)
BOOTSTRAPPING = (
    (r"^pos_embed\.pos_embed$", "pos_embed"),
    (r"^transformer\.layers\.", "blocks."),
    (r"^transformer\.norm\.", "norm."),
    (r"^(blocks\.\d+)\.attention\.linear_(qkv)\.", r"\1.attn.\2."),
    (r"^(blocks\.\d+)\.attention\.linear_out\.", r"\1.attn.proj."),
    (r"^(blocks\.\d+)\.mlp\.linear(\d)\.", r"\1.mlp.fc\2."),
    (r"^cls_head\.", "head."),
)
"""Names in github.com/zhfeing/Bootstrapping-ViTs-pytorch -> ours."""


def strip_prefixes(stored: Any, key: str = "") -> State:
    """Return the named tensors of a file's content; empty where there are none.

    Args:
        stored: what the file holds.
        key: of WRAPPERS, whose weights are taken; empty takes the first that is there.

    Raises: UserError if there is no such key.
    """
    while there := wrappers(stored):
        if key and key not in there:
            raise UserError(f"it has no weights under {key}, but under {' and '.join(there)}")
        stored, key = stored[key or there[0]], ""
    tensors = {k: v for k, v in stored.items() if isinstance(v, Tensor)} if isinstance(stored, dict) else {}
    tensors = _without_wrappers(tensors)
    prefix = next((prefix for prefix in KEPT if any(name.startswith(prefix) for name in tensors)), "")
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    beside = {name: value for name, value in tensors.items() if not name.startswith(prefix)}
    stripped = {**beside, **_without_wrappers(own)}
    return _of_bootstrapping(stripped) if "pos_embed.pos_embed" in stripped else stripped


def wrappers(stored: Any) -> list[str]:
    """Keys under which a file's content keeps weights, the first one that of its authors' choice."""
    return [key for key in WRAPPERS if isinstance(stored, dict) and isinstance(stored.get(key), dict)]


def own_names(network: nn.Module, weights: State) -> State:
    """Weights by a network's own names, out of those of its authors' code; timm's networks load as they are."""
    module = sys.modules[type(network).__module__]
    rename = None if module.__name__.startswith("timm.") else getattr(module, "checkpoint_filter_fn", None)
    return rename(weights, network) if rename else weights


def _without_wrappers(tensors: State) -> State:
    """The same by names without what wrappers of the whole network put before them."""
    while tensors and (around := next((word for word in AROUND if all(name.startswith(word) for name in tensors)), "")):
        tensors = {name.removeprefix(around): value for name, value in tensors.items()}
    return tensors


def _of_bootstrapping(weights: State) -> State:
    """Names and shapes of the plain ViT of Bootstrapping ViTs as timm's are; its positions are [T, 1, D] there."""
    renamed = {}
    for name, value in weights.items():
        for theirs, ours in BOOTSTRAPPING:
            name = re.sub(theirs, ours, name)
        renamed[name] = value.transpose(0, 1) if name == "pos_embed" else value
    return renamed


def encoder(weights: State) -> State:
    """Without what stands beside an encoder, for those who ask that a network and a file agree in every name."""
    return {name: value for name, value in weights.items() if not BESIDE.match(name)}
