# SPDX-License-Identifier: Apache-2.0
"""From files, arrays and pictures to uint8 pixels [H, W, C]: decoding, channels, value ranges, fitting to a shape."""
