# SPDX-License-Identifier: Apache-2.0
"""Send a run to the Hub: its weights where timm looks, its own files, and a card.

    README.md                          the card
    config.json, model.safetensors     the weights that count, as timm reads them
    run.json, recipe.yaml, evaluation.json or multilabel.json, weights/WHICH/...
                                       the run, for `viticulture predict hf-hub:USER/NAME`

The weights stand there twice by name and once in fact: the Hub keeps equal files once.
"""

import json
from pathlib import Path

from ..errors import UserError
from ..evaluation.multilabel.results import RESULTS as LABEL_RESULTS
from ..evaluation.multilabel.results import read_labels
from ..evaluation.results import RESULTS, Evaluations, read_evaluations
from ..models.weights.files import FILES, load
from ..training.rundir import RunDir
from ..training.session import recipe_of
from .card import Student, model_card
from .fetch import check_repository, quiet, refused
from .shared import shareable_facts, shareable_recipe, without_folders

README = "README.md"


def contents(run: RunDir, repository: str, weights: str = "") -> dict[str, bytes | Path]:
    """Path in the repository -> what stands there.

    Args:
        run: a finished run.
        repository: USER/NAME.
        weights: best, last or ema; by default those that count.

    Raises: UserError for weights that are damaged, or a run that is not finished.
    """
    check_repository(repository)
    facts = run.read("run.json")
    if facts["status"] != "finished":
        raise UserError(f"{run.path} is not finished; let it finish: viticulture resume {run.path}")
    weights = weights or run.which()[0]
    folder = run.weights(weights)
    _, task, config = load(folder)  # which finds damage that a stranger could not mend
    shared, recipe = shareable_facts(facts), shareable_recipe(recipe_of(run)).to_yaml()
    results = (read_evaluations(run) or Evaluations("", {})).of_weights(weights)
    told, student = read_labels(run), Student(config["architecture"], task.classes, task.several)
    labels = told.of_weights(weights) if told else None
    texts = {
        README: model_card(repository, shared, recipe, labels or results, student),
        "run.json": _json(shared),
        "recipe.yaml": recipe,
        **({RESULTS: _json(results.to_dict())} if results else {}),
        **({LABEL_RESULTS: _json(labels.to_dict())} if labels else {}),
    }
    files: dict[str, bytes | Path] = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    about = _json({**config, **({"recipe": without_folders(config["recipe"])} if "recipe" in config else {})})
    kept: tuple[bytes | Path, ...] = (folder / FILES[0], about.encode("utf-8", "backslashreplace"))
    for name, content in zip(FILES, kept, strict=True):
        files[name] = files[f"weights/{weights}/{name}"] = content
    return files


def push(run: RunDir, repository: str, weights: str = "", private: bool = False) -> str:
    """Make the repository if need be, send everything in one commit, and give its address.

    Args:
        run: as for `contents`.
        repository: as for `contents`.
        weights: as for `contents`.
        private: whether a new repository is seen by its owner alone.

    Raises: UserError if the Hub refuses or cannot be reached.
    """
    files = contents(run, repository, weights)
    from huggingface_hub import CommitOperationAdd, HfApi

    quiet()
    api = HfApi(library_name="viticulture")
    try:
        address = api.create_repo(repository, private=private or None, exist_ok=True)
        api.create_commit(
            repository,
            [CommitOperationAdd(name, content) for name, content in files.items()],
            commit_message=f"{run.path.name}, trained by viticulture",
        )
    except Exception as error:  # whatever a network or a hub may raise
        raise refused(f"{run.path} could not be sent to {repository}", error) from error
    return str(address)


def _json(content: object) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
