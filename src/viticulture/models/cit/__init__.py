# SPDX-License-Identifier: Apache-2.0
"""Students and teachers of Co-advise: CiT, students with several heads, RedNet and involution."""
