# SPDX-License-Identifier: Apache-2.0
"""Tasks of runs, one object each: classification, several labels, detection, segmentation."""
