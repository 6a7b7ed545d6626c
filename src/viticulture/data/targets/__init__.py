# SPDX-License-Identifier: Apache-2.0
"""Targets beyond one label per image: objects with boxes and outlines, or the class of every pixel."""
