# SPDX-License-Identifier: Apache-2.0
"""What a person looks at: tables, figures and one self-contained page per run."""
