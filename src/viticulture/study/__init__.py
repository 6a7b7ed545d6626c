# SPDX-License-Identifier: Apache-2.0
"""Many runs under equal conditions, and what can be concluded from them."""
