# SPDX-License-Identifier: Apache-2.0
"""Bad recipes: a good one with a key gone, doubled, of another type, or with damaged bytes."""

import random
from copy import deepcopy
from typing import Any

import yaml

from .words import VALUES

GOOD: dict[str, Any] = {
    "student": {"name": "vit_nano", "options": {"embed_dim": 16, "depth": 1, "num_heads": 2}},
    "method": {"name": "supervised", "smoothing": 0.1},
    "images": {"image_size": 16, "normalize": "dataset"},
    "augment": {"padded_crop": {"padding": 1}, "flip": {}},
    "optim": {"name": "adamw", "lr": 1.0e-3, "weight_decay": 0.05},
    "schedule": {"rule": "cosine", "warmup_epochs": 0, "min_lr": 1.0e-5},
    "train": {"epochs": 1, "batch_size": 10, "clip_norm": 1.0},
}


def damaged(draw: random.Random) -> bytes:
    """The bytes of a recipe that something happened to."""
    recipe: dict[Any, Any] = deepcopy(GOOD)
    section = draw.choice(list(recipe))
    kind = draw.randrange(8)
    if kind == 0:
        del recipe[section]
    elif kind == 1:
        recipe[section] = draw.choice((None, 3, [], "x", [1, {"a": 2}], {}, {3: 4}, True, float("nan")))
    elif kind == 2:
        key = draw.choice(list(recipe[section]))
        recipe[section][key] = draw.choice((None, [], {}, -1, 0, 1e400, float("nan"), "x", {"a": []}, [None], 10**30))
    elif kind == 3:
        recipe[draw.choice((5, "x", "", "guides", "augment2", "augment_local_crops", "engine", "data"))] = draw.choice(
            (None, 3, [], "x", {"x": 1}, {"logits": {}}, {"logits": None}, {"bootstrap": {"weights": 3}}, {1: 1})
        )
    text = yaml.safe_dump(recipe, sort_keys=False)
    if kind == 4:
        line = draw.choice(text.splitlines())
        text += f"{line}\n"
    elif kind == 5:
        cut = draw.randrange(len(text))
        text = text[:cut] + draw.choice(VALUES) + text[cut:]
    elif kind == 6:
        text = text[: draw.randrange(len(text))]
    data = text.encode("utf-8", errors="surrogateescape")
    if kind == 7:
        place = draw.randrange(len(data))
        data = data[:place] + bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9))) + data[place:]
    return data
