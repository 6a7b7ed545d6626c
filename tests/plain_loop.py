# SPDX-License-Identifier: Apache-2.0
"""A plain training loop, whose weights the Trainer must end with."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from viticulture.methods.method import Method
from viticulture.training.feed import training_loader
from viticulture.training.run import fit
from viticulture.training.session import Session

EXACT = {"rtol": 0.0, "atol": 0.0}


def plain_loop(session: Session) -> Method:
    """Train a new session to its end by ten lines of torch."""
    method, loader, train = session.method.train(), training_loader(session), session.config.train
    trained = method.optim.groups(method.student, nn.ModuleDict({**method.guides, **method.auxiliary}))
    optimizer = method.optim.build(trained)
    schedule = method.schedule.attach(optimizer, len(loader), train.epochs, method.optim.lr)
    stepped = [p for group in optimizer.param_groups for p in group["params"]]  # clipping sums norms in this order
    for epoch in range(train.epochs):
        for _, guide in method.named_guides():
            guide.start_epoch(epoch, train.epochs)
        for step in range(len(loader)):
            optimizer.zero_grad()
            torch.stack(list(method.losses(loader.batch(epoch, step)).values())).sum().backward()  # type: ignore[no-untyped-call]
            for _, guide in method.named_guides():
                guide.after_backward()
            if train.clip_norm:
                torch.nn.utils.clip_grad_norm_(stepped, train.clip_norm)
            optimizer.step()
            schedule.step()
    return method


def check_plain_loop(trained: Session, plain: Session, tolerance: Mapping[str, Any] = EXACT) -> None:
    """Check that the Trainer and the plain loop end with the same numbers, from the same random state."""
    state = torch.get_rng_state()
    fit(trained)
    torch.set_rng_state(state)
    ours = trained.method.state_dict()
    for name, value in plain_loop(plain).state_dict().items():
        if not name.endswith("_extra_state"):
            torch.testing.assert_close(ours[name], value, **tolerance)
