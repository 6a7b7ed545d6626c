# SPDX-License-Identifier: Apache-2.0
"""Sources of trained networks, in one grammar for `--init`, teachers, `probe`, `explain`, `predict` and `export`.

    runs/photos                                 a run, or a folder of weights, ours or timm's; also local-dir:FOLDER
    vit_tiny_patch16_224.augreg_in21k           a timm model with pretrained weights, with or without a tag
    hf-hub:OWNER/NAME                           a timm model on the Hugging Face Hub
    tf_efficientnet_lite0=lite0.safetensors     ARCHITECTURE=FILE; timm describes the images by architecture and tag
    lite0.safetensors                           FILE, where the network is named elsewhere, as by --student

FILE may be FILE#KEY, for the weights under another key, such as model_ema.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import load_model_config_from_hf
from torch import nn

from ...errors import UserError, some, unknown
from ...text import log
from ...waiting import quiet_hub, waiting
from ..data_spec import DataSpec
from ..students import FROM_DATA, blueprint, create_student, registered_name
from .checkpoint_keys import encoder, own_names
from .checksum import FILES
from .files import (
    SUFFIXES,
    brief,
    build,
    file_and_key,
    load,
    parsed_config,
    read_checkpoint,
    read_config,
    read_weights,
    state_digest,
)
from .fill import at_most, check_pretrained
from .load_matching import State, for_classes, load_matching

PLACES = (".", "weights/best", "weights/last")
"""Of the files of weights in a folder of weights, or else in a run; the first that exists counts."""
LOCAL, HUB = "local-dir:", "hf-hub:"  # timm's prefixes
AROUND_STUDENT = "backbone.student."
"""Prefix of a student's tensors in a detector or a segmenter (detection/backbone.py)."""


@dataclass(frozen=True)
class Description:
    """A network as its source describes it, before its weights are read."""

    source: str
    architecture: str  # name for `create_student`, without a tag
    # timm's description of the images: input_size, mean, std, crop_pct, interpolation, license and so on; empty for a
    # file of a student of ours.
    cfg: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)  # config.json of a folder; empty for other sources
    arguments: Mapping[str, Any] = field(default_factory=dict)  # keywords of the architecture

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the network's input, pixels; None where unknown."""
        size = self.cfg.get("input_size")
        return (int(size[1]), int(size[2])) if size else None

    @property
    def normalize(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and standard deviation of the channels, which lie in [0, 1]; None where unknown."""
        mean, std = self.cfg.get("mean"), self.cfg.get("std")
        return (tuple(map(float, mean)), tuple(map(float, std))) if mean and std else None

    @property
    def license_warning(self) -> str:
        """A warning where the weights' license forbids commercial use; empty where it does not, or is unknown."""
        terms = str(self.cfg.get("license") or "")
        forbids = re.search(r"\bnc\b|non-?commercial|apple-amlr|seer-license", terms.lower())
        return f"the weights of {self.source} must not be used commercially: license {terms}" if forbids else ""

    def options(self) -> dict[str, Any]:
        """Return the keywords that neither the data nor the architecture's name decides."""
        given = {key: value for key, value in self.arguments.items() if key not in FROM_DATA}
        size, colors = self.image_size, self.normalize
        if not given or size is None or colors is None:
            return given
        with torch.device("meta"):
            usual = create_student(self.architecture, DataSpec(("0",), size, *colors), self.arguments.get("patch_size"))
        defaults = blueprint(usual).arguments
        return {key: value for key, value in given.items() if key not in defaults or defaults[key] != value}


def describe(source: str, architecture: str = "") -> Description:
    """Describe the network of a source. `source`: see the module. `architecture`: of a file that is named alone.
    Raises: UserError for a source that does not exist, and for a file alone without an architecture.
    """
    if (folder := find_weights(source)) is not None:
        config = read_config(folder)
        _, name, arguments = parsed_config(config, folder / FILES[1])
        return Description(source, name, config["pretrained_cfg"], config, arguments)
    named, file = file_of(source)
    if file is not None:
        if not (named := named or registered_name(architecture)):
            raise UserError(f"{source} does not contain the name of its network; add it: ARCHITECTURE={source}")
        if not timm.is_model(named):
            raise unknown("architecture", named, timm.list_models())
        known = timm.get_pretrained_cfg(named)  # None for students of ours
        cfg = {**vars(known), "license": None} if known else {}  # the file may be of another training
        return Description(source, named.partition(".")[0], cfg)
    if source.startswith(HUB):
        quiet_hub()
        try:
            cfg, name, arguments = load_model_config_from_hf(source.removeprefix(HUB))
        except Exception as error:  # a network, a hub or a cache may raise anything
            raise _unfetched(source, error) from error
        return Description(source, name, cfg, arguments=arguments or {})
    _check_pretrained_name(source)
    return Description(source, source.partition(".")[0], vars(timm.get_pretrained_cfg(source)))


def predicts(source: str, classes: tuple[str, ...]) -> bool:
    """True for a folder of weights, or a run, that predicts just these classes."""
    about = describe(source)
    return "student" in about.config and tuple(about.cfg.get("label_names") or ()) == classes


def open_network(source: str, architecture: str = "") -> tuple[nn.Module, DataSpec, Description]:
    """Load a trained network with the classes and input of its training.

    A file contains no description of images: what timm says of its architecture, and of a student of ours ImageNet's
    normalization, is taken and logged, as is a license that forbids commercial use.

    Args:
        source: see the module.
        architecture: of a file that is named alone.

    Raises: UserError if the source cannot be read, does not fit its architecture, or holds values that are not finite.
    """
    about = describe(source, architecture)
    if about.license_warning:
        log(f"note     {about.license_warning}")
    named, file = file_of(source)
    if about.config:
        net, spec, _ = load(find_weights(source) or Path())
    elif file is not None:
        net = from_file(named or registered_name(architecture), file)
        spec = _described(net, about.cfg) if about.cfg else _assumed(net)
        log(
            f"note     {file.name} does not say how images are normalized; as of {named or architecture}: "
            f"mean {_numbers(spec.mean)}, deviation {_numbers(spec.std)}"
        )
    else:
        net = fetch(source)
        spec = _described(net, net.pretrained_cfg)
    _check_finite(source, net.state_dict())
    return net.eval(), spec, about


def _numbers(of_channels: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in (of_channels if len(set(of_channels)) > 1 else of_channels[:1]))


def _check_finite(source: str, state: State) -> None:
    broken = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise UserError(f"the weights of {source} are not finite: {some(broken, 3)}; take another checkpoint")


def from_file(architecture: str, file: Path) -> Any:
    """Build a timm architecture with the weights, and hence the number of classes, of a file.

    Raises: UserError naming tensors of the one that the other lacks, or that differ in shape.
    """
    weights = encoder(read_weights(file))
    with torch.device("meta"):
        weights = own_names(timm.create_model(architecture), weights)
    described = timm.get_pretrained_cfg(architecture)
    heads = (described and described.classifier) or "head"
    scores = weights.get(f"{heads if isinstance(heads, str) else heads[0]}.weight")
    net = timm.create_model(architecture, num_classes=0 if scores is None else len(scores))
    ours = net.state_dict()
    differing = {
        "the file lacks": [name for name in ours if name not in weights],
        "the network lacks": [name for name in weights if name not in ours],
        "of other shapes are": [name for name in ours if name in weights and ours[name].shape != weights[name].shape],
    }
    if any(differing.values()):
        differences = "; ".join(f"{words} {some(names, 3)}" for words, names in differing.items() if names)
        raise UserError(
            f"{file} does not fit {architecture}: {differences}. Name the architecture that it was saved of"
        )
    net.load_state_dict(weights)
    return net


def _described(net: Any, cfg: Mapping[str, Any]) -> DataSpec:
    """Return timm's description of a network's input and classes; classes without names are numbered."""
    names = cfg.get("label_names") or map(str, range(net.num_classes))
    height, width = cfg["input_size"][1:]
    return DataSpec(tuple(names), (height, width), tuple(cfg["mean"]), tuple(cfg["std"]))


def _assumed(net: Any) -> DataSpec:
    """The same for a student of ours, which timm does not describe: ImageNet's normalization, its image size."""
    size = net.patch_embed.img_size if hasattr(net, "patch_embed") else net.pretrained_cfg["input_size"][1:]
    classes = tuple(map(str, range(net.num_classes)))
    return DataSpec(classes, tuple(size), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)


def find_weights(source: str) -> Path | None:
    """Return the folder of weights of a source: a folder, or inside a run, or around its model.safetensors; None where
    the source is nothing of these. Raises: UserError if a folder holds no weights.
    """
    path = Path(source.removeprefix(LOCAL))
    if not path.is_dir():
        # Other libraries, too, call their two files so.
        ours = path.name == FILES[0] and path.is_file() and (path.parent / FILES[1]).is_file()
        if ours and "pretrained_cfg" in read_config(path.parent):
            return path.parent
        if source.startswith(LOCAL):
            raise UserError(f"{path} is no folder; name one that holds {' and '.join(FILES)}")
        return None
    for place in PLACES:
        if (path / place / FILES[1]).is_file():
            return path / place
    raise UserError(f"{path} holds no weights ({' and '.join(FILES)}), nor is it a run with weights")


def file_of(source: str) -> tuple[str, Path | None]:
    """Return the architecture, or "", and the file of a source; None for a source that is no file of weights."""
    if file_and_key(source)[0].is_file():
        return "", Path(source) if file_and_key(source)[0].suffix in SUFFIXES else None
    architecture, equals, file = source.partition("=")
    if equals and "/" not in architecture:
        return architecture, Path(file)
    return "", Path(source) if file_and_key(source)[0].suffix in SUFFIXES else None


def anchored(source: str) -> str:
    """Return a source of weights with the absolute path of a folder or file; other names are unchanged."""
    architecture, equals, file = source.partition("=")
    path = Path(source.removeprefix(LOCAL))
    if path.is_dir():
        return str(path.absolute())
    path = file_and_key(source)[0]
    if path.suffix in SUFFIXES and path.is_file():
        return str(Path(source).absolute())
    return f"{architecture}={Path(file).absolute()}" if equals and file_and_key(file)[0].is_file() else source


def place_of(source: str) -> Path:
    """Return the folder or file that a source of weights names, alone or as ARCHITECTURE=FILE; it may not exist."""
    path = file_and_key(source.removeprefix(LOCAL))[0]
    return path if path.exists() else file_and_key(source.partition("=")[2] or source)[0]


def fetch(name: str) -> Any:
    """Load a timm model with pretrained weights, from timm's cache or the network. `name`: with or without a tag, such
    as vit_tiny_patch16_224.augreg_in21k; or hf-hub:OWNER/NAME. Raises: UserError if there is no such model, or its
    weights cannot be fetched.
    """
    if not name.startswith(HUB):
        _check_pretrained_name(name)
    quiet_hub()
    try:
        with waiting(f"fetching the weights of {name}"):
            if name.startswith(HUB):
                check_pretrained(name)
            return timm.create_model(name, pretrained=True)
    except Exception as error:  # a network, a hub or a cache may raise anything
        raise _unfetched(name, error) from error


def _unfetched(name: str, error: Exception) -> UserError:
    return UserError(
        f"the weights of {name} could not be fetched ({type(error).__name__}: {brief(error)}); "
        "check the connection, or download them elsewhere and name the file: ARCHITECTURE=FILE"
    )


def _check_pretrained_name(name: str) -> None:
    """Raises: UserError for a name without pretrained weights in timm."""
    if timm.is_model_pretrained(name):
        return
    if Path(name).is_file():
        raise UserError(f"{name} has no ending of weights: {', '.join(SUFFIXES)}; rename it")
    if "/" in name:
        raise UserError(f"{name} does not exist: neither a run, nor a checkpoint, nor a folder of weights")
    raise unknown("pretrained model (nor is there such a file or folder)", name, timm.list_pretrained())


def initialize(student: nn.Module, source: str, blocks: int | None = None, classes: Sequence[str] = ()) -> list[str]:
    """Initialize a student from other weights, in place, resampled to fit it (see `load_matching`).

    Args:
        source: see the module; a file alone holds whatever of the student's tensors it holds.
        blocks: number of leading blocks to take, with what comes before them; None takes all that fits.
        classes: the student's class names, in the order of its logits; empty takes any head of their number.

    Returns: warnings for the user, see `load_matching`.
    Raises: UserError if the source cannot be read, if nothing but the head fits, or if there are no such blocks.
    """
    folder, known = find_weights(source), ()
    net: Any = None
    warnings: list[str] = []
    architecture, file = file_of(source)
    if folder is not None:
        theirs, config = read_weights(folder / FILES[0]), read_config(folder)
        if config.get("network"):  # the student of a detector or a segmenter
            theirs = {name.removeprefix(AROUND_STUDENT): value for name, value in theirs.items()}
        with at_most(len(theirs)), torch.device("meta"):
            net, _ = build(config, folder / FILES[1])
        known = config["pretrained_cfg"].get("label_names")
    elif file is not None and not architecture:
        theirs, warnings = read_checkpoint(file)
    else:
        warnings += filter(None, [describe(source).license_warning])
        net = fetch(source) if file is None else from_file(architecture, file)
        theirs, known = net.state_dict(), net.pretrained_cfg.get("label_names")
    _check_finite(source, theirs)
    vars(student)["start"] = state_digest(dict(sorted(theirs.items())))  # safetensors keeps no order
    names = [*map(str, known or ())] if blocks is None else []  # else their head is not loaded
    theirs, moved = for_classes(student, own_names(student, theirs), names, classes)
    return [f"started from {source}", *warnings, *load_matching(student, theirs, net, blocks), *moved]


def start_digest(student: nn.Module) -> str | None:
    """Return the digest of the weights that `initialize` loaded; None for a student with random weights."""
    return vars(student).get("start")
