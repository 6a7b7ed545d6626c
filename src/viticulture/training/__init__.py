# SPDX-License-Identifier: Apache-2.0
"""One training: its recipe, its folder on disk, its exact state, its loop."""
