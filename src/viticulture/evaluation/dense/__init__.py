# SPDX-License-Identifier: Apache-2.0
"""Where objects are and what pixels show: a run's detector or segmenter looking at images, judged."""
