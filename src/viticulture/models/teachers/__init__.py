# SPDX-License-Identifier: Apache-2.0
"""Frozen networks that are run, never trained."""
