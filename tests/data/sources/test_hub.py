# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's sets: invalid ones, and without a network."""

import http.server
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image

from refusals import refused
from viticulture.data.images.decode import Unreadable
from viticulture.data.open import open_source
from viticulture.data.sources.hugging_face import HubReader
from viticulture.data.sources.several import separated
from viticulture.data.sources.source import Source
from viticulture.errors import UserError


@pytest.mark.parametrize("row", [None, {"bytes": None, "path": None}, {"bytes": None, "path": "/nowhere/x.png"}])
def test_a_row_without_an_image_is_unreadable(row: Any) -> None:
    reader = HubReader([[{"image": row}]], "image")
    source = Source("x", (), np.array([-1]), ["train/0"], {}, ["0"], reader)
    with pytest.raises(Unreadable, match="train/0"):
        source.read(0)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("hf:", "hf: needs the name of a data set, such as hf:owner/name"),
        ("hf:two words", "hf: takes owner/name"),
        ("hf:" + "x" * 5000, "hf: takes owner/name"),
        ("hf:a/b/c", "hf: takes owner/name"),
    ],
)
def test_an_invalid_name_is_refused_offline(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        open_source(word)
    assert len(str(caught.value)) < 300


@contextmanager
def server() -> Iterator[str]:
    """Start a server that replies 404 to everything; yield its address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *words: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def test_without_a_network_caches_alone_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, hub = pytest.importorskip("datasets"), pytest.importorskip("huggingface_hub")
    modes: list[tuple[bool, bool]] = []

    def load(*words: Any) -> None:
        modes.append((datasets.config.HF_HUB_OFFLINE, hub.constants.HF_HUB_OFFLINE))
        raise ConnectionError("not here")

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "*")
    with server() as address:
        for endpoint in (address, "http://127.0.0.1:9"):
            monkeypatch.setattr(hub.constants, "ENDPOINT", endpoint)
            refused("foo/bar", open_source, "hf:foo/bar")
            assert not hub.constants.HF_HUB_OFFLINE
    assert modes == [(False, False), (True, True)]


def saved(folder: Path, **parts: dict[str, Any]) -> Path:
    """Write a folder by `save_to_disk`: split -> column -> values, or a pair of a feature and values."""
    datasets = pytest.importorskip("datasets", reason="the extra `hf`")

    def table(columns: dict[str, Any]) -> Any:
        given = {key: value if isinstance(value, tuple) else (None, value) for key, value in columns.items()}
        made = datasets.Dataset.from_dict({key: values for key, (_, values) in given.items()})
        for key, (feature, _) in given.items():
            made = made if feature is None else made.cast_column(key, feature)
        return made

    datasets.DatasetDict({split: table(columns) for split, columns in parts.items()}).save_to_disk(str(folder))
    return folder


def photos(count: int) -> tuple[Any, list[Any]]:
    datasets = pytest.importorskip("datasets", reason="the extra `hf`")
    return datasets.Image(), [Image.fromarray(np.full((4, 5, 3), i, np.uint8)) for i in range(count)]


def names_of(*names: str) -> Any:
    return pytest.importorskip("datasets", reason="the extra `hf`").ClassLabel(names=list(names))


def classes_of(source: Source) -> dict[str, str | None]:
    """Read image -> its class's name."""
    named = {**dict(enumerate(source.classes)), -1: None}
    return {name: named[int(label)] for name, label in zip(source.names, source.labels, strict=True)}


def test_each_splits_numbers_are_read_by_its_names(tmp_path: Path) -> None:
    animals = {"image": photos(2), "label": (names_of("zebra", "ant"), [0, 1])}
    turned = {"image": photos(3), "label": (names_of("ant", "bee", "zebra"), [0, 2, 1])}
    for i, parts in enumerate(({"train": animals, "test": turned}, {"test": turned, "train": animals})):
        source = open_source(saved(tmp_path / str(i), **parts))
        truth = {"train/0": "zebra", "train/1": "ant", "test/0": "ant", "test/1": "zebra", "test/2": "bee"}
        assert classes_of(source) == truth
    assert open_source(tmp_path / "0").classes == ("zebra", "ant", "bee")
    plain = {"image": photos(2), "label": ["ant", "zebra"]}
    source = open_source(saved(tmp_path / "plain", train=animals, test=plain))
    assert (source.classes, classes_of(source)["test/0"]) == (("ant", "zebra"), "ant")
    hidden = {"image": photos(2), "label": (names_of("zebra", "ant"), [-1, None])}
    assert open_source(saved(tmp_path / "hidden", train=animals, test=hidden)).labels.tolist() == [0, 1, -1, -1]


@pytest.mark.parametrize("column", ["Label", "LABELS", "Fine_Label"])
def test_a_label_column_may_have_any_case(column: str, tmp_path: Path) -> None:
    source = open_source(saved(tmp_path / "one", train={"image": photos(2), column: ["ant", "bee"]}))
    assert classes_of(source) == {"train/0": "ant", "train/1": "bee"}
    both = {"image": photos(2), column: ["x", "x"], column.lower(): ["ant", "bee"]}
    assert classes_of(open_source(saved(tmp_path / "both", train=both))) == classes_of(source)


def test_parquet_files_with_different_numbering_are_refused(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `hf`")

    def write(split: str, *names: str) -> None:
        image, pictures = photos(2)
        features = datasets.Features({"image": image, "label": names_of(*names)})
        table = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=features)
        table.to_parquet(str(tmp_path / f"{split}-00000-of-00001.parquet"))

    write("train", "zebra", "ant")
    write("test", "zebra", "ant")
    assert classes_of(open_source(tmp_path))["test/0"] == "zebra"
    write("test", "ant", "zebra")
    refused(r"column label numbers its classes otherwise in .*train.* than in .*test", open_source, tmp_path)


def test_disagreement_of_splits_is_reported(tmp_path: Path) -> None:
    animals = {"image": photos(2), "label": (names_of("zebra", "ant"), [0, 1])}
    bare = {"image": photos(1)}
    for i, parts in enumerate(({"train": animals, "test": bare}, {"test": bare, "train": animals})):
        source = open_source(saved(tmp_path / str(i), **parts))
        assert classes_of(source) == {"train/0": "zebra", "train/1": "ant", "test/0": None}
        assert source.warnings == ("without the column label, so without labels: test",)
    for twin, ours in (("training", "train"), ("valid", "val")):
        parts = {"train": animals, "validation": animals, twin: animals}
        with pytest.raises(UserError, match=f"and {twin} of {twin} both mean the {ours} split; keep one"):
            open_source(saved(tmp_path / twin, **parts))
    for i, (other, message) in enumerate(
        (
            ({"img": photos(1), "label": [0]}, "train has them in image, and test has the columns img, label; rename"),
            ({"image": photos(1), "fine_label": ["ant"]}, "train has them in label, test in fine_label; rename one"),
            ({"image": photos(1), "label": [1]}, "only numbers them in test; cast it to the same ClassLabel"),
        )
    ):
        with pytest.raises(UserError, match=message) as caught:
            open_source(saved(tmp_path / f"other{i}", train=animals, test=other))
        assert "\n" not in str(caught.value)


def test_ignored_class_columns_are_reported(tmp_path: Path) -> None:
    names = names_of("zebra", "ant")
    columns = {"image": photos(2), "season": (names, [0, 1]), "style": (names, [1, 1])}
    source = open_source(saved(tmp_path / "several", train=columns))
    assert source.labels.tolist() == [0, 1]
    assert source.warnings == ("labels are the column season; others that name classes are not read: style",)
    single = open_source(saved(tmp_path / "single", train={"image": photos(2), "label": (names, [1, 1])}))
    assert (single.labels.tolist(), single.warnings) == ([1, 1], ())


def test_lists_of_classes_are_several_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `hf`")
    several = datasets.Sequence(names_of("zebra", "ant", "bee"))
    tags = {"image": photos(3), "labels": (several, [[0, 1], [1], []])}
    words = {"image": photos(3), "labels": [["ant", "zebra"], ["ant"], []]}
    for name, columns, classes in (("tags", tags, ("ant", "bee", "zebra")), ("words", words, ("ant", "zebra"))):
        source = separated(open_source(saved(tmp_path / name, train=columns)))
        assert source.classes == classes
        assert [[classes[c] for c in np.flatnonzero(row)] for row in source.labels] == [["ant", "zebra"], ["ant"], []]
    source = open_source(saved(tmp_path / "numbers", train={"image": photos(1), "labels": [[0, 1]]}))
    assert source.classes == ()
    assert "lists of numbers name no classes: column labels; cast to ClassLabel" in source.warnings[0]


def test_tables_in_a_trash_folder_are_refused_and_hidden_ones_ignored(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    raw = {"bytes": (Path(__file__).read_bytes()), "path": None}
    table = datasets.Dataset.from_dict({"image": [raw, raw], "label": ["a", "b"]})
    table.to_parquet(str(tmp_path / "train-0.parquet"))
    (tmp_path / "._train-0.parquet").write_bytes(b"junk")
    assert len(open_source(tmp_path)) == 2
    (tmp_path / "#recycle").mkdir()
    shutil.copy(tmp_path / "train-0.parquet", tmp_path / "#recycle" / "train-1.parquet")
    with pytest.raises(UserError, match=r"tables that a system left behind: #recycle/train-1.parquet; remove"):
        open_source(tmp_path)
