# SPDX-License-Identifier: Apache-2.0
"""Whether attention finds the object."""
