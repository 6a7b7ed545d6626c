# SPDX-License-Identifier: Apache-2.0
"""Detectors and segmenters: a student as a backbone of maps, a pyramid, heads for boxes, masks and pixels."""
