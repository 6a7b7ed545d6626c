# SPDX-License-Identifier: Apache-2.0
"""Sources of labeled images, one kind a file."""
