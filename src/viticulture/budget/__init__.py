# SPDX-License-Identifier: Apache-2.0
"""One training, or several that build on one another, within the time that a person has."""
