# SPDX-License-Identifier: Apache-2.0
"""Training the cells of a study, here or elsewhere."""
