# SPDX-License-Identifier: Apache-2.0
"""The agent CNN of Bootstrapping ViTs, with separate weights or the ViT's."""
