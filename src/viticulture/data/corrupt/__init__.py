# SPDX-License-Identifier: Apache-2.0
"""Images as cameras, weather and storage spoil them: the corruptions of ImageNet-C at any image size."""
