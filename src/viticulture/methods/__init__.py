# SPDX-License-Identifier: Apache-2.0
"""Training methods, one a file; a recipe names a method by its file."""
