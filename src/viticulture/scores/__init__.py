# SPDX-License-Identifier: Apache-2.0
"""How good answers about objects and pixels are: pure functions, used while a student learns and when it is judged."""
