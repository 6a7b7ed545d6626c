# SPDX-License-Identifier: Apache-2.0
"""A table of plain values for a terminal, Markdown, CSV or a page."""

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev
from textwrap import fill
from typing import Literal, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from .errors import counted
from .outputs import csv_text
from .text import clean

GAP = 3  # columns of a terminal between two of a table
MIN_WIDTHS = {"text": 10, "prose": 24, "sentence": 24, "name": 80}
"""Minimum widths of columns of text, before other columns move below."""
SENTENCE = 29  # width of sentences in a pipe, which has no width
ENDLESS = 10_000  # width of a pipe

MAX_ROWS = 60  # rows of a table of classes in the terminal

Form = Literal["text", "prose", "sentence", "name", "count", "percent", "decimal", "signed", "significant", "spread"]


@dataclass(frozen=True)
class Spread:
    """One number per seed, printed as mean and sample standard deviation."""

    values: tuple[float, ...]
    digits: int = 1

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Over n - 1; None for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else None


Cell = str | int | float | Spread | None


@dataclass(frozen=True)
class Column:
    """A heading and the form of its values.

    `text` is cut where space is short, `prose` is wrapped, a `sentence` in a pipe too, a `name` stays whole, to be
    copied; `percent` takes values in [0, 1]; `signed` has a sign and one decimal, `significant` three digits.
    """

    name: str
    form: Form = "text"

    @property
    def words(self) -> bool:
        """True if it is aligned to the left."""
        return self.form in MIN_WIDTHS


@dataclass(frozen=True)
class Table:
    """Rows under columns; None prints as n/a. rich prints it as a terminal table; iterating yields a dictionary a row.

    Args:
        columns: the first names the row and is cut first where space is short.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __iter__(self) -> Iterator[dict[str, str | int | float | None]]:
        """Yield rows as column -> value, as `csv` writes them, for pandas.DataFrame(table)."""
        names, rows = self._plain()
        return (dict(zip(names, row, strict=True)) for row in rows)

    def __repr__(self) -> str:
        names = ", ".join(column.name for column in self.columns)
        return f"<Table {self.title or 'without a title'}: {counted(len(self.rows), 'row')} of {names}>"

    def texts(self) -> list[list[str]]:
        """Return every cell as text."""
        return [[show(cell, c.form) for cell, c in zip(row, self.columns, strict=True)] for row in self.rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it; columns that do not fit follow below, next to the first one again."""
        texts = self.texts()
        if self.title:
            yield Text(clean(self.title), "bold")
        for number, columns in enumerate(self._blocks(texts, options.max_width)):
            if number:
                yield Text("")
            yield self._drawn(texts, columns, SENTENCE if options.max_width >= ENDLESS else None)
        if self.note:
            yield Text(clean(self.note))

    def _widths(self, texts: Sequence[Sequence[str]]) -> list[int]:
        """Return each column's minimum width: numbers are never cut, long text is."""
        widths = []
        for number, column in enumerate(self.columns):
            cells = max([cell_len(row[number]) for row in texts], default=0)
            heading = max(map(cell_len, clean(column.name).split()), default=0)
            widths.append(min(max(cells, heading), MIN_WIDTHS[column.form]) if column.words else max(cells, heading, 1))
        return widths

    def _blocks(self, texts: Sequence[Sequence[str]], width: int) -> list[list[int]]:
        """Divide the columns into blocks that fit; the first column leads each block."""
        widths = self._widths(texts)
        blocks: list[list[int]] = [[]]
        for number in range(len(self.columns)):
            taken = sum(widths[i] + GAP for i in blocks[-1])
            if taken + widths[number] > width and len(blocks[-1]) > 1:
                blocks.append([0])
            blocks[-1].append(number)
        return blocks

    def _drawn(self, texts: Sequence[Sequence[str]], columns: Sequence[int], sentence: int | None) -> RichTable:
        heads = any(column.name for column in self.columns)
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=heads)
        widths = self._widths(texts)
        for number in columns:
            column = self.columns[number]
            heading = clean(column.name)
            if not column.words:  # a long heading breaks rather than widens
                heading = fill(heading, widths[number])
            justify: Literal["left", "right"] = "left" if column.words else "right"
            table.add_column(
                Text(heading),
                justify=justify,
                no_wrap=not column.words or column.form == "name",
                max_width=sentence if column.form == "sentence" else None,
            )
        for row in texts:
            prose = [self.columns[number].form in ("prose", "sentence") for number in columns]
            cells = zip((row[number] for number in columns), prose, strict=True)
            table.add_row(
                *(Text(text, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis") for text, wrap in cells)
            )
        return table

    def markdown(self) -> str:
        """Return a GitHub table with its title and note."""
        rule = ["---" if column.words else "--:" for column in self.columns]
        body = [[clean(column.name) for column in self.columns], rule, *self.texts()]
        lines = [
            "| " + " | ".join(escape(text, quote=False).replace("|", "\\|") for text in row) + " |" for row in body
        ]
        title, note = (escape(clean(words), quote=False) for words in (self.title, self.note))
        parts = [f"**{title}**" if title else "", "\n".join(lines), note]
        return "\n\n".join(part for part in parts if part) + "\n"

    def csv(self) -> str:
        """Return unrounded values, with n/a as nothing; a spread has three columns: mean, sd, seeds."""
        names, rows = self._plain()
        return csv_text([names, *rows])

    def _plain(self) -> tuple[list[str], list[list[str | int | float | None]]]:
        """Return the names of the columns, and rows, as `csv` writes them."""
        ends = [(" mean", " sd", " seeds") if column.form == "spread" else ("",) for column in self.columns]
        names = [column.name + end for column, each in zip(self.columns, ends, strict=True) for end in each]
        rows: list[list[str | int | float | None]] = []
        for row in self.rows:
            cells: list[str | int | float | None] = []
            for cell, column in zip(row, self.columns, strict=True):
                if isinstance(cell, Spread):
                    cells += [cell.mean, cell.sd, len(cell.values)]
                else:
                    cells += [cell, None, None] if column.form == "spread" else [cell]
            rows.append(cells)
        return names, rows


def show(cell: Cell, form: Form) -> str:
    """Return a value as text."""
    if cell is None:
        return "" if form == "spread" else "n/a"
    if isinstance(cell, Spread):
        mean = f"{cell.mean:.{cell.digits}f}"
        return mean if cell.sd is None else f"{mean} ± {cell.sd:.{cell.digits}f}"
    if isinstance(cell, str):
        return clean(cell)
    if form == "percent":
        return f"{100 * cell:.1f} %"
    if form == "signed":
        return f"{cell:+.1f}"
    if form == "significant":
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.3f}"


def percent(share: float) -> str:
    """0.7344 -> 73.4 %."""
    return f"{100 * share:.1f} %"


def unread(errors: Sequence[str]) -> str:
    """Return the number of images with an error, as a table's note; empty without any."""
    broken = sum(map(bool, errors))
    return f"{broken} of {len(errors)} images could not be read" if broken else ""


def print_table(*tables: RenderableType, file: TextIO | None = None) -> None:
    """Print tables: drawn to the width of a terminal, or whole and without color to a pipe."""
    file = file or sys.stdout
    terminal = file.isatty()
    console = Console(file=file, highlight=False, width=None if terminal else ENDLESS)
    if not console.encoding.startswith("utf") and isinstance(file, io.TextIOWrapper):
        file.reconfigure(errors="replace")
    for number, table in enumerate(tables):
        if number:
            console.print()
        if terminal:
            console.print(table)
        else:
            for line in console.render_lines(table, pad=False):
                file.write("".join(segment.text for segment in line if not segment.control).rstrip() + "\n")


def number(value: float) -> str:
    """Return a number with at most 4 digits, 3e-4 rather than 0.0003."""
    if value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.6g}" if abs(value) >= 1000 else f"{value:.4g}"


def scaled(value: float | None) -> str:
    """5717416 -> 5.72 M, 1.26e9 -> 1.26 G, 0.43 -> 0.43."""
    if value is None:
        return "n/a"
    for limit, size, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(value) >= limit:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def duration(seconds: float | None) -> str:
    """8042 -> 2 h 14 min."""
    if seconds is None:
        return "n/a"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


SPECIAL = str.maketrans(
    {letter: f"\\{letter}" for letter in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}"}
    | {">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "−": r"$-$", "–": "--"}
    | {"×": r"$\times$", "\u00a0": "~"}
)


def escaped(text: str) -> str:
    """Return text for LaTeX."""
    return clean(text).translate(SPECIAL)


def latex(table: Table) -> str:
    """Return a complete `table` environment; needs \\usepackage{booktabs}, and [T1]{fontenc} for quotation marks."""
    columns = "".join("l" if column.words else "r" for column in table.columns)
    rows = [[column.name for column in table.columns], *table.texts()]
    lines = [" & ".join(escaped(cell) for cell in row) + r" \\" for row in rows]
    title = table.title if not table.title or table.title.endswith((".", "?")) else f"{table.title}."
    caption = " ".join(part for part in (title, table.note) if part)
    body = "\n    ".join(lines[1:])
    return (
        "% \\usepackage{booktabs} \\usepackage[T1]{fontenc}\n"
        "\\begin{table}\n  \\centering\n"
        + (f"  \\caption{{{escaped(caption)}}}\n" if caption else "")
        + f"  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n    {lines[0]}\n    \\midrule\n    {body}\n"
        "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )
