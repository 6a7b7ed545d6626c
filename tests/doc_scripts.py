# SPDX-License-Identifier: Apache-2.0
"""Scripts that write the site's pages."""

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"


def doc_script(name: str) -> ModuleType:
    """Import docs/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
