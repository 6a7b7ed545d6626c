# SPDX-License-Identifier: Apache-2.0
"""Segmentation: the class of every pixel."""

from .detection import Detection


class Segmentation(Detection):
    """The class of every pixel."""

    name = "segmentation"
    does = "segments images"
    measure = "mIoU"
