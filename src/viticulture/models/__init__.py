# SPDX-License-Identifier: Apache-2.0
"""Students and teachers, registered with timm, and the taps that look inside them."""
