# SPDX-License-Identifier: Apache-2.0
"""What classifiers on frozen features reach, as a part of a run's page."""

from collections.abc import Sequence

from ...evaluation.probe.evaluate import Probe
from ..document import Section, table
from ..html import Markup
from ..tables.probe import probe_table


def probe_section(every: Sequence[Probe]) -> list[Section]:
    """A table for each set of weights and images that was judged; nothing where none was."""
    return [Section("Frozen features", Markup().join(table(probe_table(probe)) for probe in every))] if every else []
