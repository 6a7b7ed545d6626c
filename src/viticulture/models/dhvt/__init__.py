# SPDX-License-Identifier: Apache-2.0
"""DHVT, its ablations, and the names that timm knows."""
