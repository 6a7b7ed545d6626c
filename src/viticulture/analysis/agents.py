# SPDX-License-Identifier: Apache-2.0
"""The agent CNNs that were trained beside a run's student and that its weights do not hold: out of its last checkpoint.

agents_of(RunFolder.open("runs/cifar100"))     # {"bootstrap": the agent}
"""

from dataclasses import replace

from torch import nn

from ..config.schema import guide_class
from ..guides.bootstrap import Bootstrap
from ..models.weights.files import load
from ..training.assemble import build_guides
from ..training.run_folder import RunFolder
from ..training.run_inputs import recipe_of
from ..training.state import beneath, load_checkpoint


def agents_of(run: RunFolder) -> dict[str, nn.Module]:
    """Agents by the guide that trained them, in inference mode, on the CPU; none without such a guide.

    An agent of shared weights is made of the student's of the same step.

    Raises: UserError if the run has no checkpoint, or a damaged one.
    """
    recipe = recipe_of(run)
    guides = recipe.values["guides"].items()
    entries = {name: entry for name, entry in guides if issubclass(guide_class(name, entry), Bootstrap)}
    if not entries:
        return {}
    state = load_checkpoint(run.checkpoint)["state_dict"]
    student, data_spec, _ = load(run.weights(run.which()[0]))
    student.load_state_dict(beneath(state, "method.student."))
    agents: dict[str, nn.Module] = {}
    taught = replace(recipe, values={**recipe.values, "guides": entries})
    for name, guide in build_guides(taught, student, data_spec).items():
        assert isinstance(guide, Bootstrap)
        guide.load_state_dict(beneath(state, f"method.guides.{name}."))
        agents[name] = guide.agent.eval()
    return agents
