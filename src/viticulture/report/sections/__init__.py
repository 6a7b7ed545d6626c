# SPDX-License-Identifier: Apache-2.0
"""Sections of pages, one subject a file."""
