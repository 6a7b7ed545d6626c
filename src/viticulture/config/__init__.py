# SPDX-License-Identifier: Apache-2.0
"""A recipe file, checked once and turned into one typed, frozen `Config`."""
