# SPDX-License-Identifier: Apache-2.0
"""Workflows, hooks, citation and the package's description agree with the repository; names and texts of the package
are in words of the field.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from viticulture.version import VERSION

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
SAYS_MAKE = [
    *(path for path in WORKFLOWS if path.stem != "docs"),
    ROOT / ".ci" / "run",
    ROOT / "CONTRIBUTING.md",
    ROOT / "README.md",
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def parsed(path: Path) -> Any:
    """Parse a YAML file."""
    return yaml.safe_load(path.read_text("utf-8"))


def targets() -> dict[str, list[str]]:
    """Return target of the Makefile -> its commands."""
    rules = re.findall(r"^([a-z-]+):[^\n=]*\n((?:\t.*\n?)*)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    return {name: [line.strip() for line in commands.splitlines()] for name, commands in rules}


def test_make_targets_in_use_exist() -> None:
    for path in SAYS_MAKE:
        called = re.findall(r"(?:^|run:|    )\s*make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE)
        assert called, path
        assert set(called) <= targets().keys(), path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_complete(path: Path) -> None:
    jobs = parsed(path)["jobs"]
    for job in jobs.values():
        assert job["runs-on"] in ("ubuntu-latest", "macos-latest")
        assert 0 < job["timeout-minutes"] <= 120
        assert {job.get("needs")} <= {None, *jobs}
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        for file in re.findall(r"tests/[\w/]+\.py", str(job["steps"])):
            assert (ROOT / file).is_file()


def test_every_supported_system_and_python_is_tested() -> None:
    ci = parsed(ROOT / ".github" / "workflows" / "ci.yml")
    versions = ci["jobs"]["check-and-test"]["strategy"]["matrix"]["python"]
    promised = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert versions == promised
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert "Operating System :: MacOS" in PROJECT["classifiers"]
    assert ci["jobs"]["macos"]["runs-on"] == "macos-latest"
    (lowest,) = (step["with"]["python-version"] for step in ci["jobs"]["lowest-versions"]["steps"] if "with" in step)
    assert lowest == versions[0]


def test_pre_commit_runs_make_check() -> None:
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = [hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]]
    checks = [re.sub(r"^\$\(BIN\)/| --check| \.$", "", command) for command in targets()["check"]]
    assert hooks == checks


def test_an_issue_form_labels_its_fields() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature"]
    for path in FORMS:
        form = parsed(path)
        assert form["name"]
        assert form["description"]
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)
        assert all(field["attributes"]["label"] for field in form["body"])


def test_the_citation_is_of_this_version() -> None:
    citation = parsed(ROOT / "CITATION.cff")
    assert str(citation["version"]) == VERSION
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]


SOURCE = Path(__file__).parents[1] / "src"
# fmt: off
GONE = {
    "answerer", "answers", "asked", "asks", "beside", "borrowed", "climb", "conduct", "deal", "heir", "judge", "judged",
    "ladder", "learnt", "loan", "look", "looked", "looking", "looks", "mend", "nobody", "oblong", "pace", "paint",
    "painted", "person", "remark", "remarks", "room", "rooms", "settled", "sheet", "standing", "straddling", "stranger",
    "subject", "tells", "told", "verb", "verbs", "verdict", "watched", "whoever", "wish", "workshop",
}
# fmt: on
GONE_FROM_TEXTS = re.compile(
    r"\b(answerer|judged?|judges|learnt|mend|nobody|oblong|painted|remarks?|told|verdict|whoever|workshop)\b",
    re.IGNORECASE,
)


def words_of(tree: ast.AST) -> set[str]:
    """Return the words of all names that a module defines or uses: run and folder of `RunFolder`."""
    names = {
        name
        for node in ast.walk(tree)
        for name in (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
        if isinstance(name, str)
    }
    return {word for name in names for word in re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())}


def test_names_are_words_of_the_field() -> None:
    assert words_of(ast.parse("def tell_all(x): return Answerer().asked")) & GONE == {"answerer", "asked"}
    found = {str(file): words_of(ast.parse(file.read_text("utf-8"))) & GONE for file in SOURCE.rglob("*.py")}
    assert {file: words for file, words in found.items() if words} == {}


def test_messages_and_help_are_in_words_of_the_field() -> None:
    """Docstrings of the API are its help."""
    assert GONE_FROM_TEXTS.search("the run learnt from it")
    texts = [(file, file.read_text("utf-8")) for kind in ("yaml", "j2", "html") for file in SOURCE.rglob(f"*.{kind}")]
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append((file, node.value))
    assert [(str(file), match[0]) for file, text in texts if (match := GONE_FROM_TEXTS.search(text))] == []
