# SPDX-License-Identifier: Apache-2.0
"""Commands that share a run: serve it on an address, push it to the Hub."""

from importlib.util import find_spec
from typing import Any

from ..errors import UserError
from ..waiting import STDERR, waiting
from .arguments import checked, run_folder_of, trained_run

NEEDS = {"starlette": "starlette", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}
"""Import name -> package, of the extra `serve`."""


@checked
def serve(run: Any, weights: str = "", host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve predictions on a web page and by HTTP, until Ctrl-C.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        weights: best, last or ema; by default those the results are for.
        host: address to listen on; the default is only reachable from this machine, 0.0.0.0 from everywhere.
        port: to listen on; 0 takes a free one.
    """
    if missing := [package for module, package in NEEDS.items() if find_spec(module) is None]:
        raise UserError(f"serving needs {' and '.join(missing)}, not installed; run: pip install 'viticulture[serve]'")
    from ..deploy.serve.app import application, listening
    from ..deploy.serve.app import run as serve_until_stopped

    with listening(host, port) as taken:
        with waiting("loading PyTorch"):
            from ..deploy.serve.page import page
            from ..deploy.serve.predictor import Predictor
            from ..tasks.task import task_of
        task = task_of(trained_run(run_folder_of(run)))
        predictor = Predictor(task, weights)
        local = host in ("127.0.0.1", "::1", "localhost")
        hosts = ["127.0.0.1", "localhost", "::1", "[::1]"] if local else ["*"]
        app = application(predictor, page(task, predictor, weights), hosts)
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{taken.getsockname()[1]} serves until Ctrl-C", file=STDERR, flush=True)
        if not local:
            print(f"note: anyone who reaches {host} can send images; nothing is encrypted", file=STDERR, flush=True)
        serve_until_stopped(app, taken)


@checked
def push(run: Any, repository: str, weights: str = "", private: bool = False) -> str:
    """Upload a run to the Hugging Face Hub, in timm's format, with a model card.

    For detection and segmentation timm loads the backbone. No image, file name or path is uploaded; the names of the
    classes, the data set and the run are, and of a classifier features (vectors) of up to 1,000 training images.

    Args:
        run: the run's folder.
        repository: USER/NAME; created if it does not exist.
        weights: best, last or ema; by default those the results are for.
        private: create a private repository; an existing public one is refused.

    Returns: the repository's URL.
    """
    from ..deploy.hub.push import push as upload
    from ..training.run_folder import RunFolder

    folder = RunFolder.open(run_folder_of(run))
    with waiting("uploading to the Hub"):
        return upload(folder, repository, weights, private)
