# SPDX-License-Identifier: Apache-2.0
"""Weakly supervised localization by attention."""
