# SPDX-License-Identifier: Apache-2.0
"""A sheet as a LaTeX table with booktabs' rules."""

from ...table import Table
from ...text import clean

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "×": r"$\times$",
    "\u00a0": "~",
}


def escaped(text: str) -> str:
    """Words as LaTeX prints them, letter by letter."""
    return "".join(SPECIAL.get(letter, letter) for letter in clean(text))


def latex(sheet: Table) -> str:
    """A complete `table` environment; needs \\usepackage{booktabs}, and [T1]{fontenc} for quotation marks."""
    columns = "".join("l" if column.words else "r" for column in sheet.columns)
    rows = [[column.name for column in sheet.columns], *sheet.texts()]
    lines = [" & ".join(escaped(cell) for cell in row) + r" \\" for row in rows]
    caption = " ".join(part for part in (_sentence(sheet.title), sheet.note) if part)
    body = "\n    ".join(lines[1:])
    return (
        "% \\usepackage{booktabs} \\usepackage[T1]{fontenc}\n"
        "\\begin{table}\n  \\centering\n"
        + (f"  \\caption{{{escaped(caption)}}}\n" if caption else "")
        + f"  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n    {lines[0]}\n    \\midrule\n    {body}\n"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


def _sentence(title: str) -> str:
    return title if not title or title.endswith((".", "?")) else f"{title}."
