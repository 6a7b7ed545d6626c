# SPDX-License-Identifier: Apache-2.0
"""Every run below a folder on one page, each with a link to its own."""

import os
from pathlib import Path
from urllib.parse import quote

from ..document import Head, Section, document, table
from ..tables.runs import Runs


def render_index(runs: Runs, out: Path) -> str:
    """The page as HTML text; links lead from where it is written."""
    way = os.path.relpath(runs.folder.absolute(), out.absolute().parent)
    links = [f"./{quote(str(Path(way, page)))}" if page else "" for page in runs.pages]
    sentence = f"{len(runs.pages):,} runs, the last begun first. A click on a heading sorts."
    return document(Head(runs.sheet.title, sentence=sentence), [Section("Runs", table(runs.sheet, True, links=links))])
