# SPDX-License-Identifier: Apache-2.0
"""Where labelled images come from, one kind a file."""
