# SPDX-License-Identifier: Apache-2.0
"""Evaluation of frozen features by linear classifiers and nearest neighbors."""
