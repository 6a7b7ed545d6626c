# SPDX-License-Identifier: Apache-2.0
"""From images to batches."""
