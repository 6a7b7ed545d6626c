# SPDX-License-Identifier: Apache-2.0
"""Analysis of a run's student on its images, saved in explain.json and features.npz; and features of its layers as
maps: of a ViT and its agent CNN side by side, as in Bootstrapping ViTs, arXiv:2112.03552, Appendix D, Tables 10 and 11.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config.schema import guide_class
from ..data.data_settings import DataSettings
from ..data.dataset import Dataset, prepare
from ..data.image_set import Images
from ..data.open import open_source
from ..data.sources.source import Source
from ..errors import UserError, counted
from ..evaluation.model import EvaluatedModel, of_run, of_source, pictures
from ..evaluation.saved import checksum_of, is_current, read_saved
from ..guides.bootstrap import Bootstrap
from ..models.weights.files import load
from ..training.assemble import build_guides
from ..training.progress import showing
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of, dataset_of, stands_for_own
from ..training.state import beneath, load_checkpoint
from .attention import selected_layers
from .galleries import Gallery, Group, file_name, read_galleries, save_galleries
from .layers import (
    MIN_IMAGES,
    LayerAnalysis,
    analyze_layers,
    default_reading,
    layer_similarity,
    layer_taps,
    patch_features,
    to_lists,
    to_tensor,
)
from .pictures import attention_galleries

BATCH = 128  # images, the batch size of CKA
FILE, PICTURES = "explain.json", "features.npz"


@dataclass(frozen=True)
class ExplainOptions:
    """Options of an analysis.

    Args:
        images: how many; the selection is the same every time.
        compare_with: another network (a run, or a source for `model.of_source`) whose layers are compared on the same
            images.
        reading: what stands for a layer, norms or blocks, see layers.py; "" takes norms if all networks have them.
        layers: whose attention and features are drawn, counted from 1; empty takes up to four, spread over the depth.
    """

    images: int = 1152
    compare_with: str = ""
    reading: str = ""
    layers: Sequence[int] = ()


@dataclass(frozen=True)
class Explanation:
    """Attention statistics, CKA and Fourier amplitudes of a network, and pictures."""

    weights: str  # best, last or ema of a run; "its" for any other network
    split: str
    analysis: LayerAnalysis
    compared_with: str = ""  # name of the other network, or ""
    # Between this network's layers and the other's, [layers, other layers]; None without another one.
    cka: Tensor | None = None
    features: Sequence[Gallery] = ()
    attention: Sequence[Gallery] = ()
    checksum: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers for JSON, without pictures."""
        other = None if self.cka is None else {"network": self.compared_with, "cka": to_lists(self.cka)}
        about = {"weights": self.weights, "checksum": self.checksum, "split": self.split}
        return {**about, **self.analysis.to_dict(), "compared_with": other}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Explanation":
        """Invert `to_dict`."""
        other = content["compared_with"]
        name, cka = (other["network"], to_tensor(other["cka"])) if other else ("", None)
        analysis = LayerAnalysis.from_dict(content)
        return cls(content["weights"], content["split"], analysis, name, cka, checksum=content["checksum"])


def explain_run(run: RunFolder, dataset: Dataset, options: ExplainOptions) -> Explanation:
    """Explain a run's student with the weights that count, and save the result in the run."""
    weights = run.which()[0]
    checksum = checksum_of(run, weights)
    explanation = explain(of_run(run, weights, BATCH), dataset, options, agent_models(run))
    explanation = replace(explanation, weights=weights, checksum=checksum)
    save_galleries(run.path / PICTURES, {"features": explanation.features, "attention": explanation.attention})
    run.write(FILE, explanation.to_dict())
    return explanation


def explain(
    model: EvaluatedModel, dataset: Dataset, options: ExplainOptions, agents: Mapping[str, EvaluatedModel] = {}
) -> Explanation:
    """Analyze a network on test images (validation or training images, if there are none).

    Raises: UserError for too few images, a network without attention or without the reading, or layers that a network
        does not have.
    """
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    if (count := min(options.images, len(images))) < MIN_IMAGES:
        raise UserError(f"an explanation needs at least {MIN_IMAGES} images, got {count} of {split}")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    some = images.part(order[: options.images])
    model = replace(model, batch_size=BATCH)
    networks = {"the student": model, **agents}
    other, name = any_model(options.compare_with) if options.compare_with else (None, "")
    if other is not None:
        if other.data_spec.channels != model.data_spec.channels:
            raise UserError(
                f"{options.compare_with} takes {counted(other.data_spec.channels, 'channel')}, and these images have "
                f"{model.data_spec.channels}; compare networks with the same number of channels"
            )
        networks[f"{name} (compared)" if name in networks else name] = other
    features = feature_galleries(networks, some, options.layers)  # first: it refuses a layer that does not exist
    reading = options.reading or default_reading([each.network for each in (model, other) if each is not None])
    analysis = analyze_layers(model.network, _inputs(model, some), reading)
    attention = attention_galleries(model, some, options.layers)
    cka = None
    if other is not None:
        pairs = zip(_inputs(model, some), _inputs(other, some), strict=True)
        cka = layer_similarity(model.network, other.network, pairs, reading)
    return Explanation("its", split, analysis, name, cka, features, attention)


def explain_any(source: str, data: str | Source, options: ExplainOptions) -> Explanation:
    """Explain a network by its name, on any images, and save nothing. `data`: images; empty, or the object that the run
    was trained on, for the run's own images.
    """
    model, _ = any_model(source)
    run = RunFolder.open(source) if (Path(source) / "run.json").exists() else None
    if run is None or not stands_for_own(run, data):
        settings = model.image_settings.without_statistics
        whole = DataSettings(val_fraction=0, test_fraction=0, near_duplicates="ignore")
        images = open_source(data, annotations_first=True).images_alone  # without the masks next to them
        with showing("reading images") as progress:
            dataset = prepare(images, whole, settings, 0, progress, labeled=False)
    else:
        dataset = dataset_of(run, config_of(run), data)
    return explain(model, dataset, options, agent_models(run) if run else {})


def agents_of(run: RunFolder) -> dict[str, nn.Module]:
    """Load the agent CNNs of a run from its last checkpoint, by the guide that trained them, in inference mode.

    An agent with shared weights takes them from the student of the same step.
    """
    config = config_of(run)
    guides = config.values["guides"].items()
    entries = {name: entry for name, entry in guides if issubclass(guide_class(name, entry), Bootstrap)}
    if not entries:
        return {}
    state = load_checkpoint(run.checkpoint)["state_dict"]
    student, data_spec, _ = load(run.weights(run.which()[0]))
    student.load_state_dict(beneath(state, "method.student."))
    agents: dict[str, nn.Module] = {}
    bootstrapped = replace(config, values={**config.values, "guides": entries})
    for name, guide in build_guides(bootstrapped, student, data_spec).items():
        assert isinstance(guide, Bootstrap)
        guide.load_state_dict(beneath(state, f"method.guides.{name}."))
        agents[name] = guide.agent.eval()
    return agents


def agent_models(run: RunFolder) -> dict[str, EvaluatedModel]:
    """Return a run's agents by name, with the student's input; empty without agents or without a checkpoint."""
    if not run.checkpoint.exists():
        return {}
    student = of_run(run, batch_size=BATCH)
    agents = agents_of(run)
    names = {name: "its agent" if len(agents) == 1 else f"its agent {name}" for name in agents}
    return {names[name]: replace(student, network=agent.to(student.device)) for name, agent in agents.items()}


def any_model(source: str) -> tuple[EvaluatedModel, str]:
    """Load a run's network, or a source for `model.of_source`, and return it with its name."""
    if (Path(source) / "run.json").exists():
        return of_run(RunFolder.open(source), batch_size=BATCH), Path(source).name
    return replace(of_source(source), batch_size=BATCH), source


def read_explanation(run: RunFolder) -> Explanation | None:
    """Read the saved explanation; None if there is none, or it is of other weights."""
    explanation = read_saved(run, FILE, Explanation.from_dict)
    if explanation is None or not is_current(run, explanation.weights, explanation.checksum):
        return None
    drawn = read_galleries(run.path / PICTURES) or {}
    return replace(explanation, features=drawn.get("features", ()), attention=drawn.get("attention", ()))


def _inputs(model: EvaluatedModel, images: Images) -> Iterator[Tensor]:
    return (batch["image"] for batch in model.batches(images))


MAX_IMAGES = 6


def feature_map(features: Tensor) -> Tensor:
    """Compute the formula above. Shape: [B, D, rows, columns] -> [B, rows, columns]; not negative."""
    centered = features - features.mean((2, 3), keepdim=True)
    return centered.square().mean(1).sqrt()


def feature_maps(
    model: EvaluatedModel, batch: Tensor, layers: Sequence[int] = (), network: str = "the network"
) -> dict[int, Tensor]:
    """Compute the maps of layers for every image: layer, counted from 1 -> [B, rows, columns]. `layers`: counted from
    1; empty takes up to four, spread over the depth.
    """
    taps = layer_taps(model.network, "blocks")
    assert taps.layout is not None
    selected = selected_layers(layers, len(taps.layout.blocks), network)
    with torch.inference_mode():
        tokens, grids = patch_features(taps(batch).blocks, taps.layout, batch)
    maps = (tokens[layer].transpose(1, 2).unflatten(2, grids[layer]).float() for layer in selected)  # type: ignore[no-untyped-call]
    return {layer + 1: feature_map(features) for layer, features in zip(selected, maps, strict=True)}


def feature_galleries(networks: Mapping[str, EvaluatedModel], images: Images, layers: Sequence[int]) -> list[Gallery]:
    """Draw the maps of every network for each of the first images, one gallery per image."""
    some = images.part(torch.arange(min(MAX_IMAGES, len(images))))
    groups: list[list[Group]] = [[] for _ in some.records.names]
    for name, model in networks.items():
        pixels = torch.cat([part for _, part in model.views(some)])
        maps = feature_maps(model, model.normalized(pixels), layers, name)
        lines = [name, f"layer{'s' if len(maps) > 1 else ''} {', '.join(map(str, maps))}"]
        for i, (group, picture) in enumerate(zip(groups, pictures(pixels), strict=True)):
            group.append(([picture, *(each[i].cpu().numpy() for each in maps.values())], lines))
    return [Gallery(file_name(name), group) for name, group in zip(some.records.names, groups, strict=True)]
