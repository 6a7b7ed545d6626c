# SPDX-License-Identifier: Apache-2.0
"""Metrics of detection and segmentation: pure functions, for training and evaluation."""
