# SPDX-License-Identifier: Apache-2.0
"""Errors on corrupted images and on other test sets of ImageNet."""
