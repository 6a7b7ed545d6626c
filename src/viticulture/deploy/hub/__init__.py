# SPDX-License-Identifier: Apache-2.0
"""Runs on the Hugging Face Hub: sent with a card, and used by their name, hf-hub:USER/NAME."""
