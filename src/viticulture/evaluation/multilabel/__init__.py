# SPDX-License-Identifier: Apache-2.0
"""Several labels an image: what is measured of them, and what is said of new images."""
