# SPDX-License-Identifier: Apache-2.0
"""Analyses of a trained network, as pure functions of what the taps read, and pictures for its page."""
