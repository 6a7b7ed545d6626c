# SPDX-License-Identifier: Apache-2.0
"""How a student learns; one way of learning a file."""
