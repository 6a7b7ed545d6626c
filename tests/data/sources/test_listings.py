# SPDX-License-Identifier: Apache-2.0
"""Lists of images of other programs: COCO's JSON without boxes, Label Studio's exports, Parquet."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import viticulture
from refusals import refused
from untrained import photo
from viticulture.config.load import read as read_recipe
from viticulture.config.resolve import resolve
from viticulture.data.data_settings import DataSettings
from viticulture.data.open import annotation_format, open_source
from viticulture.data.sources.several import separated
from viticulture.data.splits import select
from viticulture.errors import UserError
from viticulture.report.terminal import say
from viticulture.training.data import open_for

COCO: dict[str, Any] = {
    "images": [
        {"id": 7, "file_name": "photos/a.png"},
        {"id": 2, "file_name": "b.png"},
        {"id": 3, "file_name": "c.png"},
    ],
    "annotations": [{"id": 1, "image_id": 2, "category_id": 5}, {"id": 2, "image_id": 7, "category_id": 9}],
    "categories": [{"id": 9, "name": "vine"}, {"id": 5, "name": "oak"}],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i, name in enumerate("abc"):
        photo(tmp_path / "photos" / f"{name}.png", i)
    return tmp_path


def opened(root: Path, content: Any, name: str = "labels.json") -> Any:
    (root / name).write_text(json.dumps(content))
    return open_source(str(root / name), "classes")


def labeled(source: Any) -> dict[str, str | None]:
    """Read file -> class, in any order."""
    return {
        name: source.classes[label] if label >= 0 else None
        for name, label in zip(source.names, source.labels, strict=True)
    }


def test_coco_without_boxes_is_a_list_of_classes(root: Path) -> None:
    source = opened(root, COCO)
    assert labeled(source) == {"photos/a.png": "vine", "photos/b.png": "oak", "photos/c.png": None}
    assert source.read(0).size == (40, 24)
    (root / "windows.json").write_text(json.dumps(COCO), "utf-8-sig")
    assert labeled(open_source(root / "windows.json")) == labeled(source)


@pytest.mark.parametrize(
    ("part", "entry", "words"),
    [
        ("annotations", {"image_id": "7", "category_id": 5}, "image_id is text, '7', .* is a number, 7; write both as"),
        ("annotations", {"image_id": 7, "category_id": "5"}, "category_id is text, '5', .* is a number, 5; write both"),
        ("annotations", {"image_id": 99, "category_id": 5}, "image_id is 99, which is no id in the list"),
        ("categories", {"id": 9, "name": "elm"}, "calls category 9 '.*' and 'elm'; number both"),
    ],
)
def test_unknown_ids_are_reported_with_their_type(part: str, entry: dict[str, Any], words: str, root: Path) -> None:
    refused(words, opened, root, {**COCO, part: [*COCO[part], entry]})


def data_spec(image: str, *choices: Any, **also: Any) -> dict[str, Any]:
    """Build one data_spec as Label Studio exports it."""
    result = [{"type": "choices", "from_name": "choice", "value": {"choices": list(choices)}}]
    return {"data": {"image": image}, "annotations": [{"result": result, "was_cancelled": False, **also}]}


def test_an_unlabeled_image_of_several_labels_is_left_out(root: Path) -> None:
    shows = data_spec("a.png", "vine", "oak")
    for nobody in (data_spec("c.png", was_cancelled=True), {"data": {"image": "c.png"}, "annotations": []}):
        source = opened(root, [shows, data_spec("b.png"), nobody])
        assert separated(source).labels.tolist() == [[1, 1], [0, 0], [-1, -1]]
        splits, notes = select(separated(source), DataSettings(test_fraction=0, val_fraction=0), 0)
        assert splits["train"].tolist() == [0, 1]
        assert notes == ["left out 1 train image without a label"]
    least = [{"image": "a.png", "choice": {"choices": ["vine", "oak"]}}, {"image": "b.png", "annotation_id": 7}]
    assert separated(opened(root, [*least, {"image": "c.png"}])).labels[:, 0].tolist() == [1, 0, -1]
    single = opened(
        root, [data_spec("a.png", "vine"), data_spec("b.png", "oak"), data_spec("c.png", was_cancelled=True)]
    )
    assert separated(single).labels[2].tolist() == [-1, -1], "nor where no image has several"


def test_label_studios_exports_are_read(root: Path) -> None:
    tasks = [
        data_spec("/data/upload/1/8d27eb28-a.png", "vine"),
        data_spec("/data/local-files/?d=photos/b.png", "oak"),
        data_spec("s3://bucket/c.png", "oak", was_cancelled=True),
    ]
    expected = {"photos/a.png": "vine", "photos/b.png": "oak", "photos/c.png": None}
    assert labeled(opened(root, tasks)) == expected
    least = [{"image": "/data/upload/1/8d27eb28-a.png", "choice": "vine"}, {"image": "photos/b.png", "choice": "oak"}]
    assert labeled(opened(root, [*least, {"image": "c.png"}])) == expected
    agreed = [data_spec("a.png", "vine"), data_spec("b.png", "oak")]
    agreed[0]["annotations"] *= 2
    source = opened(root, agreed)
    assert (labeled(source)["photos/a.png"], source.warnings) == ("vine", ())
    agreed[0]["annotations"] = data_spec("a.png", "vine")["annotations"] + data_spec("a.png", "oak")["annotations"]
    source = opened(root, agreed)
    assert labeled(source)["photos/a.png"] == "vine|oak"
    assert source.warnings == ("annotators disagree about 1 image, taken to show all that any of them chose: a.png",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**COCO, "annotations": [{"image_id": 2, "category_id": 5, "bbox": [1, 2, 3, 4]}]}, "recipe detection/"),
        ({**COCO, "images": [{"id": 7, "file_name": "gone.png"}, *COCO["images"][1:]]}, "does not hold: gone.png"),
        ([{"data": {"image": "a.png"}, "annotations": [{"result": [{"value": {"x": 1}}]}]}], "regions"),
        ({**COCO, "images": [*COCO["images"], {"id": 7, "file_name": "c.png"}]}, "gives two images one id"),
        ([data_spec(f"data:image/png;base64,{'A' * 5000}/gone.png", "vine")], "1 file that .* does not hold"),
        ({"rows": []}, "KeyError: 'categories'.*Label Studio"),
        ([{"image": "a.png", "species": "vine", "annotation_id": 7}], "no image has the key choice, .* but species"),
        ([{"path": "a.png", "label": 1}], "no image has the key choice, .* but label, path"),
        ([1, 2], "no list of images that is known here"),
        ("text", "no list of images that is known here"),
    ],
)  # fmt: skip
def test_other_lists_are_refused_in_a_line(root: Path, content: Any, said: str) -> None:
    refused(said, opened, root, content)


def test_choices_may_be_numbers_or_null(root: Path) -> None:
    tasks = [data_spec("a.png", 3), data_spec("b.png", None, 3.0), data_spec("c.png", None)]
    expected = {"photos/a.png": "3", "photos/b.png": "3", "photos/c.png": None}
    assert labeled(opened(root, tasks)) == expected
    choices = {"a.png": 3, "b.png": [None, 3], "c.png": None}
    least = [{"image": name, "choice": choice} for name, choice in choices.items()]
    assert labeled(opened(root, least)) == expected
    word: Any = data_spec("a.png")
    word["annotations"][0]["result"][0]["value"]["choices"] = "vine"
    assert opened(root, [word]).classes == ("vine",)
    refused(r"TypeError: the choice \{\} is no class", lambda: opened(root, [data_spec("a.png", {})]))


def test_an_ambiguous_name_is_refused(root: Path) -> None:
    photo(root / "others" / "b.png", 9)
    refused(r"image 'b\.png', and there are several: (photos|others)/b\.png", opened, root, COCO)


ROWS = {"photos/a.png": "vine", "photos/b.png": "oak", "photos/c.png": "vine"}


def listing(root: Path, kind: str, rows: dict[str, str]) -> Path:
    """Write the same list in another format."""
    content = dict[str, Any](
        images=[], annotations=[], categories=[{"id": 5, "name": "oak"}, {"id": 9, "name": "vine"}]
    )
    for number, (path, label) in enumerate(rows.items()):
        content["images"].append({"id": number, "file_name": path})
        content["annotations"].append({"image_id": number, "category_id": {"oak": 5, "vine": 9}[label]})
    table = "".join(f"{path},{label}\n" for path, label in rows.items())
    text = {
        "list.csv": f"path,label\n{table}",
        "list_train.txt": "".join(f"{path} {label == 'vine':d}\n" for path, label in rows.items()),
        "list.json": json.dumps(content),
        "train2018.json": json.dumps(content),
        "tasks.json": json.dumps([data_spec(path, label) for path, label in rows.items()]),
    }
    (root / kind).write_text(text[kind])
    return root / kind


def partition(source: Any) -> set[frozenset[str]]:
    """Group images by class, whatever the classes' names."""
    names = labeled(source)
    return {frozenset(name for name in names if names[name] == label) for label in {*names.values()}}


KINDS = ["list.csv", "list_train.txt", "list.json", "train2018.json", "tasks.json"]
CLASSES = {frozenset({"photos/a.png", "photos/c.png"}), frozenset({"photos/b.png"})}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "path",
    [
        "..\\photos\\{}", "C:\\Users\\me\\photos\\{}", "\\\\server\\share\\photos\\{}", "https://host/x/photos/{}?key=1#top",
        "s3://bucket/photos/{}", "../../old/photos/{}", "/home/other/photos/{}", "/data/upload/1/8d27eb28-{}",
        "http://localhost:8080/data/local-files/?d=photos/{}", "PHOTOS/{}", "photos\\{}", "{}",
    ],
)  # fmt: skip
def test_every_format_reads_paths_of_other_systems(root: Path, kind: str, path: str) -> None:
    rows = {path.format(Path(name).name): label for name, label in ROWS.items()}
    (root.parent / "photos").mkdir(exist_ok=True)
    source = open_source(listing(root, kind, rows))
    assert partition(source) == CLASSES
    assert source.root == str(root)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("written", ["utf-8-sig", "utf-16", "utf-32", "\r\n", "\r", "upper"])
def test_every_format_reads_other_encodings(root: Path, kind: str, written: str) -> None:
    file = listing(root, kind, ROWS)
    text = file.read_text()
    if written == "upper":
        file = file.rename(file.with_suffix(file.suffix.upper()))
    elif written.startswith("utf"):
        file.write_text(text, written)
    else:
        file.write_bytes(text.replace("\n", written).encode())
    assert partition(open_source(file)) == CLASSES


@pytest.mark.parametrize("kind", ["list.json", "train2018.json", "tasks.json", "list_train.txt"])
@pytest.mark.parametrize(
    "named", ["../secret/a.png", "{secret}/a.png", "..\\secret\\a.png", "photos/../../secret/a.png"]
)
def test_no_list_reads_beyond_its_folder(root: Path, kind: str, named: str) -> None:
    (root / "lists").mkdir()
    photo(root / "secret" / "a.png", 5)
    with pytest.raises(UserError, match=r"1 file that .* does not hold"):
        open_source(listing(root / "lists", kind, {named.format(secret=root / "secret"): "vine"}))


@pytest.mark.parametrize(
    ("before", "row", "after"),
    [
        ("sep=;\r\npath;label\r\n", "{};{}\r\n", ""),
        ('"sep=|"\npath|label\n', "{}|{}\n", ""),
        ("# of a tool, in 2026\n#\n\npath,label\n", "{},{}\n", "# the end, at last\n"),
        ("#path,label\n", "{},{}\n", ""),
        ("path,label,\n", "{},{},\n", ""),
        ("path,label\n", "{} , {} ,\n", " , \n"),
        ("PATH\tLabel\n", "{}\t{}\n", ""),
    ],
)
def test_a_csv_is_read_as_programs_write_it(root: Path, before: str, row: str, after: str) -> None:
    (root / "list.csv").write_text(before + "".join(row.format(*each) for each in ROWS.items()) + after)
    assert labeled(open_source(root / "list.csv")) == ROWS


@pytest.mark.parametrize("kind", ["list.csv", "list_train.txt"])
def test_repeated_rows_are_reported_and_left_out(root: Path, kind: str) -> None:
    file = listing(root, kind, ROWS)
    rows = file.read_text().splitlines()
    file.write_text("\n".join([*rows, *rows[1:]]))
    source = open_source(file)
    assert len(source) == 3
    assert source.warnings[-1] == f"left out {len(rows) - 1} rows of the list that repeat another one"
    other = rows[-1].replace("vine", "oak") if kind == "list.csv" else rows[-1].replace(" 1", " 0")
    file.write_text("\n".join([*rows, other]))
    refused(r"lists photos/c\.png in line .* and line ", open_source, file)


def test_a_list_of_classes_is_one_for_every_command(root: Path) -> None:
    forms: list[dict[str, Any]] = [{}, {"bbox": [], "segmentation": []}, {"bbox": None, "iscrowd": 0}]
    for empty in forms:
        content = {**COCO, "annotations": [{**each, **empty} for each in COCO["annotations"]]}
        source = opened(root, content, "instances.json")
        assert annotation_format(root / "instances.json")[0] is None
        assert viticulture.inspect(root / "instances.json").classes == source.classes == ("oak", "vine")
        config = resolve("mae/photos", read_recipe("mae/photos"))
        assert open_for(config, str(root / "instances.json")).classes == ("oak", "vine")


def test_data_recommends_no_recipe_that_refuses_a_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "none.json").write_text(json.dumps({**COCO, "annotations": []}))
    say(viticulture.inspect(root / "none.json"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "detection/photos" not in printed
    assert "No training image has an object" in printed
    assert "--recipe mae/photos" in printed


def test_a_name_that_is_no_text_is_refused(root: Path) -> None:
    for name in (True, None, 1.10, ["oak"]):
        with pytest.raises(UserError, match="a name is text, got"):
            opened(root, {**COCO, "categories": [{"id": 9, "name": name}, {"id": 5, "name": "oak"}]})


def test_names_are_the_same_in_an_ascii_locale(tmp_path: Path) -> None:
    for name in ("Müller", "Öl"):
        photo(tmp_path / name / "1.png", len(name))
    (tmp_path / "list.csv").write_text("path,label\nMüller/1.png,Müller\nÖl/1.png,Öl\n", "utf-8")
    code = (
        "import sys; from viticulture.data.open import open_source\n"
        "for data in sys.argv[1:]:\n    source = open_source(data); source.read(0)\n"
        "    print(ascii((source.classes, source.names)), source.fingerprint)"
    )
    data, plain = [str(tmp_path), str(tmp_path / "list.csv")], {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    said = [
        subprocess.run([sys.executable, "-c", code, *data], env={**os.environ, **more}, capture_output=True, text=True)
        for more in (plain | {"PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"})
    ]
    assert said[0].stdout == said[1].stdout, said[0].stderr
    assert ascii("Müller") in said[0].stdout


def test_parquet_with_paths_equals_its_csv(root: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `hf`")
    from pyarrow import parquet

    paths, labels = ["photos/a.png", "photos/b.png", "photos/c.png"], ["vine", None, "oak"]
    splits = ["train", "train", "test"]
    parquet.write_table(pyarrow.table({"path": paths, "label": labels, "split": splits}), root / "all.parquet")
    (root / "all.csv").write_text(
        "path,label,split\n" + "".join(f"{p},{n or ''},{s}\n" for p, n, s in zip(paths, labels, splits, strict=True))
    )
    ours, listed = (open_source(str(root / name)) for name in ("all.parquet", "all.csv"))
    assert ours.fingerprint == listed.fingerprint
    numbers = pyarrow.table({"path": paths, "label": [3.0, float("nan"), 4.0]})  # as pandas keeps 3, nothing, 4
    parquet.write_table(numbers, root / "numbers.parquet")
    assert labeled(open_source(str(root / "numbers.parquet"))) == dict(zip(paths, ["3", None, "4"], strict=True))
    (root / "torn.parquet").write_bytes(b"PAR1 and no more")
    refused("cannot be read as Parquet", open_source, str(root / "torn.parquet"))


def test_parquet_with_image_bytes_needs_no_metadata(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra `hf`")
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 8, 3), np.uint8)
    files = []
    for array in pixels:
        Image.fromarray(array).save(file := io.BytesIO(), "PNG")
        files.append(file.getvalue())
    for name, column in (("plain", files), ("struct", [{"bytes": file, "path": None} for file in files])):
        parquet.write_table(pyarrow.table({"image": column, "label": ["a", "b"]}), tmp_path / f"{name}.parquet")
        source = open_source(str(tmp_path / f"{name}.parquet"))
        assert source.classes == ("a", "b")
        assert [np.array_equal(source.read(i), pixels[i]) for i in range(2)] == [True, True]
