# SPDX-License-Identifier: Apache-2.0
"""`python -m viticulture` is the `viticulture` command."""

from .cli import entry

entry()
