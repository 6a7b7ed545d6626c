# SPDX-License-Identifier: Apache-2.0
"""A run's student as a page and an address that answers about images."""
