# SPDX-License-Identifier: Apache-2.0
"""Pages of runs and studies, their tables, charts and pictures, and the terminal's output."""
