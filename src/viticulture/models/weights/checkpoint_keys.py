# SPDX-License-Identifier: Apache-2.0
"""Weights by a student's parameter names, from the files of training scripts.

    {"model": {...}}                                                        DeiT, and MAE with its decoder's decoder_*
    {"model": {"module.model.*", "module.tch_model.*"}}                     MAE-Lite, distilled or not
    {"state_dict": {"module.base_encoder.*", "module.momentum_encoder.*"}}  MoCo-v3; the same under "model" in MAE-Lite
    {"state_dict": {"module.encoder_q.*"}}                                  MoCo-v2, with its projector fc.0 and fc.2
    {"state_dict": {"method.student.*", "method.auxiliary.*"}}              a checkpoint of ours
    {"state_dict": {"model._orig_mod.*"}}                                   Lightning around a compiled network
    {"student": {...}, "teacher": {"backbone.*", "head.*"}}                 DINO: the teacher, as its authors do
    {"model": {"encoder.*", "decoder.0.*"}}                                 SimMIM, a BEiT (`_of_beit`)
    {"state_dict": {"module.student.*", "module.teacher.*"}}                SEED
    {"state_dict_ema": {...}, "state_dict": {...}}                          timm: the running mean, as timm loads
    {"model": {...}, "model_ema": {...}}                                    DeiT and DHVT: `model`, as they fine-tune
    {"state_dict": {"backbone.*", "head.fc.*"}}                             mmcls, RedNet
    {"model": {"transformer.layers.*"}}, or "models.vit.*" and "models.cnn.*"   Bootstrapping ViTs

FILE#KEY selects the weights under another key. Tensors outside the selected network keep their names.
Where a network's module has a `checkpoint_filter_fn`, as timm's have, it translates its authors' names.
"""

import re
import sys
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from .load_matching import State

WRAPPERS = ("state_dict_ema", "state_dict", "model", "model_ema", "teacher", "student")
"""Keys of weights in a file; of several the first is loaded, as its authors do."""
AROUND = ("module.", "_orig_mod.", "method.")  # prefixes of every name, from wrappers of a whole network
SELECTED = ("base_encoder.", "encoder_q.", "encoder.", "model.", "student.", "models.vit.", "vit.", "backbone.")
"""Prefixes of one network among several."""
OTHERS = re.compile(  # tensors outside an encoder: of MAE, of MoCo with its projector, of MAE-Lite, of ours
    r"decoder_|mask_token|head\.(\d|mlp|last_layer)|fc\.\d|queue|models\.|(encoder_k|momentum_encoder|predictor|tch_model|attn_adapter|hidden_adapter|auxiliary|guides)\."
)
BOOTSTRAPPING = (
    (r"^pos_embed\.pos_embed$", "pos_embed"),
    (r"^transformer\.layers\.", "blocks."),
    (r"^transformer\.norm\.", "norm."),
    (r"^(blocks\.\d+)\.attention\.linear_(qkv)\.", r"\1.attn.\2."),
    (r"^(blocks\.\d+)\.attention\.linear_out\.", r"\1.attn.proj."),
    (r"^(blocks\.\d+)\.attention\.softmax\.alpha$", r"\1.attn.free_alpha"),
    (r"^(blocks\.\d+)\.mlp\.linear(\d)\.", r"\1.mlp.fc\2."),
    (r"^cls_head\.", "head."),
)
"""Names in github.com/zhfeing/Bootstrapping-ViTs-pytorch -> ours."""
LAYER_SCALE = re.compile(r"(.*)\.(?:gamma_([12])|ls([12])\.gamma)")
"""Factors of a residual branch in BEiT or in timm's ViTs."""
LAST_LAYERS = ("attn.proj", "mlp.fc2")  # of the two branches


def strip_prefixes(stored: Any, key: str = "") -> State:
    """Return the named tensors of a file's content, if any. `key`: of WRAPPERS, or what names begin with; empty takes
    the first of WRAPPERS that exists. Raises: UserError if there is no such key.
    """
    while found := wrappers(stored):
        if key and key not in found:
            raise UserError(f"it has no weights under {key}, but under {' and '.join(found)}")
        stored, key = stored[key or found[0]], ""
    tensors = {k: v for k, v in stored.items() if isinstance(v, Tensor)} if isinstance(stored, dict) else {}
    if key:
        tensors = {name.removeprefix(f"{key}."): v for name, v in tensors.items() if name.startswith(f"{key}.")}
        if not tensors:
            raise UserError(f"it has no weights under {key}")
    tensors = _without_wrappers(tensors)
    prefix = next((prefix for prefix in SELECTED if any(name.startswith(prefix) for name in tensors)), "")
    selected = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    others = {name: value for name, value in tensors.items() if not name.startswith(prefix)}
    stripped = {**others, **_without_wrappers(selected)}
    return _of_bootstrapping(stripped) if "pos_embed.pos_embed" in stripped else stripped


def wrappers(stored: Any) -> list[str]:
    """Return the keys of weights in a file's content, the authors' choice first."""
    return [key for key in WRAPPERS if isinstance(stored, dict) and isinstance(stored.get(key), dict)]


def own_names(network: nn.Module, weights: State) -> State:
    """Return weights by a network's parameter names, from its authors' names; those of timm's networks stay."""
    module = sys.modules[type(network).__module__]
    rename = None if module.__name__.startswith("timm.") else getattr(module, "checkpoint_filter_fn", None)
    return _of_beit(rename(weights, network) if rename else weights, network.state_dict())


def _without_wrappers(tensors: State) -> State:
    """Strip prefixes that every name has from wrappers."""
    while tensors and (around := next((word for word in AROUND if all(name.startswith(word) for name in tensors)), "")):
        tensors = {name.removeprefix(around): value for name, value in tensors.items()}
    return tensors


def _of_beit(weights: State, ours: State) -> State:
    """Convert what BEiT's ViTs, as SimMIM's and DeiT III's, store apart, unless the network does so, too: biases of
    queries and values alone are joined, with zeros for the keys'; layer scales, timm's as well, take timm's names or,
    of a network without, are multiplied into the layer before them."""
    converted = dict(weights)
    for name in [name for name in weights if name not in ours]:
        base, _, last = name.rpartition(".")
        if last == "q_bias" and f"{base}.qkv.bias" in ours:
            q, v = converted.pop(name), converted.pop(f"{base}.v_bias")
            converted[f"{base}.qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])
        elif found := LAYER_SCALE.fullmatch(name):
            branch = int(found[2] or found[3])
            scale, layer = f"{found[1]}.ls{branch}.gamma", f"{found[1]}.{LAST_LAYERS[branch - 1]}"
            if scale in ours:
                converted[scale] = converted.pop(name)
            elif f"{layer}.weight" in weights:
                gamma = converted.pop(name)
                converted[f"{layer}.weight"] = gamma[:, None] * converted[f"{layer}.weight"]
                if f"{layer}.bias" in weights:
                    converted[f"{layer}.bias"] = gamma * converted[f"{layer}.bias"]
    return converted


def _of_bootstrapping(weights: State) -> State:
    """Rename and reshape the plain ViT of Bootstrapping ViTs to timm's; its positions are [T, 1, D]."""
    renamed = {}
    for name, value in weights.items():
        for theirs, ours in BOOTSTRAPPING:
            name = re.sub(theirs, ours, name)
        renamed[name] = value.transpose(0, 1) if name == "pos_embed" else value
    return renamed


def encoder(weights: State) -> State:
    """Drop tensors outside an encoder, for callers that require equal names of a network and a file."""
    return {name: value for name, value in weights.items() if not OTHERS.match(name)}
