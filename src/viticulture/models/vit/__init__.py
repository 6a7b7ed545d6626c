# SPDX-License-Identifier: Apache-2.0
"""Plain ViTs and what stands in for their pieces."""
