# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a trained student: accuracy, calibration and confusion."""
