# SPDX-License-Identifier: Apache-2.0
"""Errors on images that something happened to."""
