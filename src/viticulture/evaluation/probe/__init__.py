# SPDX-License-Identifier: Apache-2.0
"""What frozen features know."""
