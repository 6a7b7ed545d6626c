# SPDX-License-Identifier: Apache-2.0
"""One training, or several that build on one another, within a time budget."""
