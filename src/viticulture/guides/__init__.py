# SPDX-License-Identifier: Apache-2.0
"""What teaches the student while it trains and is thrown away afterwards; one paper's teacher a file."""
