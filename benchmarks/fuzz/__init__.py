# SPDX-License-Identifier: Apache-2.0
"""Misuse by dice: bad commands, recipes and files, and kills at random moments. `python -m benchmarks.fuzz --help`."""
