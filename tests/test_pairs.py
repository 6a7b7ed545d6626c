# SPDX-License-Identifier: Apache-2.0
"""Every method beside every guide: it trains, or one line says why not, before anything is made."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pairs import GUIDES, METHODS, STUDENTS, Data, make_data, make_teachers, optimizer_of, pair, step
from viticulture import guides, methods
from viticulture.errors import UserError
from viticulture.guides.guide import Batch, Given, Guide
from viticulture.methods.method import Method
from viticulture.models.taps import Seen
from viticulture.optim import Optim, Schedule
from viticulture.training.assemble import check_parts
from viticulture.training.recipe import choices, find, read, resolve
from viticulture.training.run import training_loader
from viticulture.training.session import begin

REFUSED = {
    **dict.fromkeys([(method, "logits") for method in METHODS if method != "supervised"], "scores of the classes"),
    **dict.fromkeys([(method, name) for method in METHODS if method != "supervised" for name in ("co_advise", "one head")], "labels and scores"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITICULTURE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return make_data()


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_teachers(tmp_path_factory.mktemp("teachers"))
