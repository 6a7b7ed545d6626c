# SPDX-License-Identifier: Apache-2.0
"""viticulture grows Vision Transformers on little data."""
