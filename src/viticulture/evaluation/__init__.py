# SPDX-License-Identifier: Apache-2.0
"""How good a trained student is: accuracy, calibration and what it confuses."""
