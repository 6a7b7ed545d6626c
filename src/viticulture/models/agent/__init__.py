# SPDX-License-Identifier: Apache-2.0
"""The agent CNN of Bootstrapping ViTs, with weights of its own or the ViT's."""
