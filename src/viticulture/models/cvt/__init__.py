# SPDX-License-Identifier: Apache-2.0
"""CvT: a transformer whose tokens are embedded and projected by convolutions."""
