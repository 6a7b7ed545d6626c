# SPDX-License-Identifier: Apache-2.0
"""Who agrees with whom: students, their tokens, their teachers."""
