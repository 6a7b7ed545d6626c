# SPDX-License-Identifier: Apache-2.0
"""Frozen networks that are asked, never trained."""
