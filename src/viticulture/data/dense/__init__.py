# SPDX-License-Identifier: Apache-2.0
"""Images with objects or with a class for every pixel: where they are read from, and how they follow augmentation."""
