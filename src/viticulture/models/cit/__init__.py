# SPDX-License-Identifier: Apache-2.0
"""Students and teachers of Co-advise: CiT, heads of several tokens, RedNet and involution."""
