# SPDX-License-Identifier: Apache-2.0
"""Weights on disk, and into networks."""
