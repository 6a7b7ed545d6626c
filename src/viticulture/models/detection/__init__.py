# SPDX-License-Identifier: Apache-2.0
"""Students that say where things are: a backbone of maps, a pyramid, heads for boxes, masks and classes of pixels."""
