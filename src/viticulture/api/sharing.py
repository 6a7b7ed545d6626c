# SPDX-License-Identifier: Apache-2.0
"""Verbs that show a run to others: on an address of this machine, on the Hub."""

from importlib.util import find_spec
from typing import Any

from ..errors import UserError
from ..waiting import STDERR, waiting
from .arguments import checked, run_folder_of, trained_run

NEEDS = {"starlette": "starlette", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
"""Module -> package of the extra `serve`."""


@checked
def serve(run: Any, weights: str = "", host: str = "127.0.0.1", port: int = 8000) -> None:
    """Answer about images that are dropped on a page, or sent to an address, until Ctrl-C.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        weights: best, last or ema; by default those that count.
        host: address to listen at; the default is reached from this machine alone, 0.0.0.0 from everywhere.
        port: of that address; 0 takes a free one.
    """
    if missing := [package for module, package in NEEDS.items() if find_spec(module) is None]:
        raise UserError(f"serving needs {' and '.join(missing)}, not installed; run: pip install 'viticulture[serve]'")
    from ..deploy.serve.app import application, listening
    from ..deploy.serve.app import run as answer_until_stopped

    with listening(host, port) as taken:
        with waiting("loading PyTorch"):
            from ..deploy.serve.answers import Answerer
            from ..deploy.serve.page import page
        folder = trained_run(run_folder_of(run))
        student = Answerer(folder, weights)
        local = host in ("127.0.0.1", "::1", "localhost")
        shown = page(folder, student, weights)
        app = application(student, shown, ["127.0.0.1", "localhost", "::1", "[::1]"] if local else ["*"])
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{taken.getsockname()[1]} answers until Ctrl-C", file=STDERR, flush=True)
        if not local:
            print(f"note: all who reach {host} can send images, and nothing is encrypted", file=STDERR, flush=True)
        answer_until_stopped(app, taken)


@checked
def push(run: Any, repository: str, weights: str = "", private: bool = False) -> str:
    """Send a run to the Hugging Face Hub: weights that timm loads too, its recipe and results, and a model card.

    Of a detector or a segmenter timm loads the student within it. No image, file name or path is sent; names of
    classes, of the data set and of the run are.

    Args:
        run: the run's folder.
        repository: USER/NAME; made if need be.
        weights: best, last or ema; by default those that count.
        private: the repository is seen by its owner alone; one that everybody sees is refused.

    Returns: its address.
    """
    from ..deploy.hub.push import push as send
    from ..training.run_folder import RunFolder

    folder = RunFolder.open(run_folder_of(run))
    with waiting("sending to the Hub"):
        return send(folder, repository, weights, private)
