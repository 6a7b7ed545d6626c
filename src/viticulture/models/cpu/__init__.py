# SPDX-License-Identifier: Apache-2.0
"""Layers computed faster on a CPU, each next to its plain form; `kernels.plain_kernels` chooses the plain ones."""
