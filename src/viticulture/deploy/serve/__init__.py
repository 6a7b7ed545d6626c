# SPDX-License-Identifier: Apache-2.0
"""A page and an HTTP endpoint for predictions of a run."""
