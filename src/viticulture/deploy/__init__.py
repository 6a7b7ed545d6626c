# SPDX-License-Identifier: Apache-2.0
"""Ways to use a run elsewhere: as an ONNX file, as a page and an address, as a repository on the Hub."""
