# SPDX-License-Identifier: Apache-2.0
"""The package's version."""

VERSION = "0.1.0"
