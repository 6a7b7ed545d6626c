# SPDX-License-Identifier: Apache-2.0
"""Types of targets beyond a class per image: objects with boxes and outlines, classes of pixels."""
