# SPDX-License-Identifier: Apache-2.0
"""Batched augmentation: every transform is a pure function of images and a table of uniform random numbers."""
