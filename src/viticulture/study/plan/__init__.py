# SPDX-License-Identifier: Apache-2.0
"""How long every cell of a study trains."""
