# SPDX-License-Identifier: Apache-2.0
"""Save and load weights.

A folder of weights holds two files, as timm writes them: `model.safetensors` and `config.json`. Any timm reads it,
after `import viticulture.models.students` if the architecture is ours (DHVT; not the plain ViTs):

    timm.create_model("local-dir:FOLDER", pretrained=True)

Nothing is ever unpickled: weights are safetensors, or go through torch's weights-only reader (.pth), which allows the
settings (argparse.Namespace) that many scripts store with them.
"""

import argparse
import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ...cache import source_of
from ...disk import read_json, replacing, write_whole
from ...errors import UserError, as_named, some
from ..data_spec import DataSpec
from ..students import FROM_DATA, blueprint, create_student
from .checkpoint_keys import strip_prefixes, wrappers
from .checksum import CHECKSUM, FILES
from .fill import check_numbers, filled
from .load_matching import State, classifiers

MAX_CLASSES, MAX_SIDE, MAX_CHANNELS = 1_000_000, 8192, 1024  # beyond these a config.json counts as damaged
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar")  # .tar: scripts that write NAME.pth.tar


def save(student: nn.Module, folder: Path, data_spec: DataSpec, extra: Mapping[str, Any] | None = None) -> None:
    """Write a student's weights and config.json; each file appears whole or not at all.

    Args:
        folder: created if need be; files of an earlier save are replaced.
        extra: further keys of config.json. Under "pretrained_cfg" they override timm's description of the input,
            whose crop is otherwise the whole image (`crop_pct` 1).

    Raises: UserError if the disk is full or the folder cannot be written.
    """
    # Copies, as safetensors refuses tensors on one storage: a CoaT's blocks share layers.
    whole = torch.contiguous_format
    weights = {name: value.detach().cpu().clone(memory_format=whole) for name, value in student.state_dict().items()}
    config = json.dumps(_config(student, data_spec, dict(extra or {})), indent=2, ensure_ascii=False)
    with replacing(folder / FILES[0]) as part:
        part.write_bytes(_sealed(safetensors.torch.save(weights, {"format": "pt"})))
    write_whole(folder / FILES[1], config)


def _config(student: nn.Module, data_spec: DataSpec, extra: dict[str, Any]) -> dict[str, Any]:
    built_by, timms = blueprint(student), getattr(student, "pretrained_cfg", {})
    described = {
        key: timms[key] for key in ("classifier", "first_conv", "fixed_input_size", "pool_size") if key in timms
    }
    if data_spec.channels != 3:
        described.pop("first_conv", None)  # timm would convert weights of three channels by it
    if len(names := classifiers(student)) > 1:
        described["classifier"] = names  # which timm initializes anew for other classes
    return {
        "architecture": built_by.architecture,
        "num_classes": len(data_spec.classes),
        "pretrained_cfg": {
            **described,
            "num_classes": len(data_spec.classes),
            "input_size": [data_spec.channels, *data_spec.image_size],
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": list(data_spec.mean),
            "std": list(data_spec.std),
            "label_names": list(data_spec.classes),
            **extra.pop("pretrained_cfg", {}),
        },
        "model_args": built_by.arguments,
        "student": built_by.name,
        **({"multilabel": True} if data_spec.multilabel else {}),
        **({"scale": list(data_spec.scale)} if data_spec.scale is not None else {}),
        **extra,
    }


def note(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Add keys to the config.json of a folder of weights."""
    write_whole(folder / FILES[1], json.dumps({**read_config(folder), **metadata}, indent=2, ensure_ascii=False))


def _sealed(content: bytes) -> bytes:
    """Add a checksum of its values to the header of a safetensors file."""
    header, values = _opened(content)
    header.setdefault("__metadata__", {})[CHECKSUM] = f"{zlib.crc32(values):08x}"
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + values


def _opened(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return header and values of a safetensors file."""
    begin = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:begin]), memoryview(content)[begin:]


def load(folder: Path) -> tuple[nn.Module, DataSpec, dict[str, Any]]:
    """Load a student that `save` wrote, in inference mode, with its DataSpec and config.json.

    Raises: UserError if files are missing, damaged or of a detector or a segmenter, or do not belong together.
    """
    config = read_config(folder)
    if config.get("network"):
        raise UserError(
            f"{folder} holds a detector or segmenter, and this needs a classifier; evaluate, predict and export take "
            "it, and students start from it: --init"
        )
    weights = read_weights(folder / FILES[0])
    try:
        student, data_spec = filled(lambda: build(config, folder / FILES[1]), weights)
    except RuntimeError as error:
        raise UserError(f"{folder / FILES[0]} does not fit its {FILES[1]}: {brief(error)}") from error
    return student.eval(), data_spec, config


def build(config: dict[str, Any], path: Path) -> tuple[nn.Module, DataSpec]:
    """Build the student that a config.json describes, with random weights."""
    data_spec, name, arguments = parsed_config(config, path)
    options = {key: value for key, value in arguments.items() if key not in FROM_DATA}
    try:
        return create_student(name, data_spec, arguments.get("patch_size"), options), data_spec
    except UserError as error:
        raise UserError(f"{path} does not work: {error}") from error
    except Exception as error:  # a constructor may raise anything
        raise UserError(f"{path} is damaged: no {name} can be built by it ({brief(error)})") from error


def parsed_config(config: dict[str, Any], path: Path) -> tuple[DataSpec, str, dict[str, Any]]:
    """Return DataSpec, student and its keywords from a config.json, ours or timm's."""
    try:
        described, classes = config["pretrained_cfg"], int(config["num_classes"])
        if not 0 <= classes <= MAX_CLASSES:
            raise ValueError(f"{classes} classes")
        names = described.get("label_names") or range(classes)
        channels, height, width = described["input_size"]
        valid = isinstance(channels, int) and 0 < channels <= MAX_CHANNELS
        if not valid or not all(isinstance(side, int) and 0 < side <= MAX_SIDE for side in (height, width)):
            raise ValueError(f"images of {channels}, {height}, {width}")
        mean, std = (tuple(map(float, described[key])) for key in ("mean", "std"))
        if not len(mean) == len(std) == channels or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
            raise ValueError(f"colors of mean {mean} and standard deviation {std}")
        scale = None if config.get("scale") is None else (float(config["scale"][0]), float(config["scale"][1]))
        if scale is not None and not all(map(math.isfinite, scale)):
            raise ValueError(f"numbers of mean and standard deviation {scale}")
        several = bool(config.get("multilabel", False))
        data_spec = DataSpec(tuple(map(str, names)), (height, width), mean, std, several, scale)
        if len(data_spec.classes) != classes:
            raise ValueError(f"{classes} classes but {len(data_spec.classes)} names")
        check_numbers([config.get("model_args"), config.get("network")])
        return data_spec, str(config.get("student", config["architecture"])), dict(config.get("model_args", {}))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged or not written by viticulture: {error!r}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a folder of weights."""
    if not (folder / FILES[1]).is_file():
        raise UserError(f"{folder} is no folder of weights: it holds no {FILES[1]}")
    return read_json(folder / FILES[1])


def read_weights(path: Path) -> State:
    """Return the tensors that `read_checkpoint` reads."""
    return read_checkpoint(path)[0]


def read_checkpoint(source: Path) -> tuple[State, list[str]]:
    """Read the tensors of a .safetensors file, or of a .pth file that holds nothing but weights, without prefixes of
    their names; those that `save` wrote keep their names, as a user's network may hold a `model` or a `vit`.

    Returns: the tensors, and a warning that names which of several weights they are.
    Raises: UserError if the file is missing, damaged, holds Python objects, or has no such key.
    """
    (path, key), warnings = file_and_key(source), list[str]()
    try:
        if path.suffix == ".safetensors":
            content = path.read_bytes()
            state = safetensors.torch.load(content)
            header, values = _opened(content)
            written = header.get("__metadata__", {}).get(CHECKSUM)
            if written not in (None, f"{zlib.crc32(values):08x}"):
                raise SafetensorError("its values differ from those that were written (checksum)")
            state = strip_prefixes(state, key) if key or written is None else state
        else:
            with catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
                stored = torch.load(path, map_location="cpu", weights_only=True)
            taken, *others = [key] * bool(key) or wrappers(stored) or [""]
            warnings += [f"its {taken} is loaded; for another: {path.name}#{other}" for other in others[:1]]
            state = strip_prefixes(stored, key)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no weights file {as_named(path)}") from error
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from error
    except Exception as error:  # torch's reader raises half a dozen types
        named = re.search(r"(?<=GLOBAL )\S+|Unsupported operand \d+", str(error))  # among advice to run its code
        raise UserError(
            f"{path} cannot be read as weights alone (it is damaged, or holds Python objects, which are never loaded): "
            f"{named[0] if named else brief(error)}; where you trust the file, load it with the code that wrote it "
            "and save the weights alone as .safetensors"
        ) from error
    if not state:
        raise UserError(f"{path} holds no weights by name")
    if odd := [name for name, value in state.items() if not _is_plain(value)]:
        raise UserError(f"{path} stores tensors that are not dense: {some(odd, 3)}; save them dense")
    return state, warnings


def _is_plain(value: Tensor) -> bool:
    """Return whether a tensor stores every element; sparse, quantized and expanded ones do not, and a few bytes of them
    may represent any size."""
    if value.layout != torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def brief(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def file_and_key(source: str | Path) -> tuple[Path, str]:
    """Split FILE#KEY, which names one of several weights in a file, such as model_ema; the key may be missing."""
    file, mark, key = str(source).rpartition("#")
    named = mark and Path(file).suffix in SUFFIXES and not Path(source).exists()
    return (Path(file), key) if named else (Path(source), "")


def identity(network: nn.Module, without: tuple[str, ...] = ()) -> list[str]:
    """Return texts that change with a network's weights, its layers, their settings, and code outside the package.

    Args:
        without: layers that do not matter, such as classifiers.
    """
    matters = {
        name: module
        for name, module in network.named_modules()
        if not f"{name}.".startswith(tuple(f"{layer}." for layer in without))
    }
    settings = [
        f"{name} {type(module).__name__} {key} {value!r}"
        for name, module in matters.items()
        for key, value in sorted(vars(module).items())
        if key != "training"
        and all(isinstance(part, int | float | str) for part in (value if isinstance(value, tuple) else (value,)))
    ]
    classes = {cls for module in matters.values() for cls in type(module).__mro__ if cls is not object}
    code = sorted({source_of(cls) for cls in classes})
    state = {name: value for name, value in network.state_dict().items() if name.rpartition(".")[0] in matters}
    return [state_digest(state), *settings, *code]


def weights_digest(net: nn.Module) -> str:
    """Return a digest of a network's weights, see `state_digest`."""
    return state_digest(net.state_dict())


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return a digest of tensors, their names, types and shapes."""
    hashed = hashlib.blake2b(digest_size=16)
    for name, tensor in state.items():
        hashed.update(name.encode() + str(tensor.dtype).encode() + str(tuple(tensor.shape)).encode())
        hashed.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
