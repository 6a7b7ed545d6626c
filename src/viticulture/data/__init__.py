# SPDX-License-Identifier: Apache-2.0
"""From a name or a folder to augmented batches on the device."""
