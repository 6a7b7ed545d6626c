# SPDX-License-Identifier: Apache-2.0
"""Where labeled images come from, one kind a file."""
