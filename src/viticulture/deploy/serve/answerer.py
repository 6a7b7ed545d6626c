# SPDX-License-Identifier: Apache-2.0
"""What the server asks about images that somebody sent: loaded once, asked often."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from ...evaluation.inputs import Item
from ...models.data_spec import DataSpec


class Answerer(Protocol):
    """A run's network, ready to be asked; one request at a time."""

    @property
    def data_spec(self) -> DataSpec:
        """Its classes."""
        ...

    @property
    def tells(self) -> Literal["classes", "objects", "pixels"]:
        """Of what."""
        ...

    @property
    def looks(self) -> bool:
        """Whether it can draw."""
        ...

    def rows(self, items: Sequence[Item], look: bool = False) -> list[dict[str, Any]]:
        """The numbers of `viticulture predict` for the same images together, ready for JSON, a row an item.

        Args:
            items: no more than are shown to a student at once (`predict.BATCH`), or bits may differ from the verb's.
            look: with each row `look`, a picture as a data URI; empty for what cannot be read or drawn.
        """
        ...

    def csv(self, items: Sequence[Item]) -> str:
        """The same as `viticulture predict --out FILE.csv` writes it."""
        ...
