# SPDX-License-Identifier: Apache-2.0
"""What goes on inside a trained student, as pure functions of what the taps read."""
