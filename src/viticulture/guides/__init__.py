# SPDX-License-Identifier: Apache-2.0
"""Guides, which teach the student during training, one paper a file; a recipe names a guide by its file."""
