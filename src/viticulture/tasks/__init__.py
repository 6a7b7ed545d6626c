# SPDX-License-Identifier: Apache-2.0
"""What runs are trained for, one object each: classification, several labels, detection, segmentation."""
