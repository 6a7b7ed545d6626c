# SPDX-License-Identifier: Apache-2.0
"""What another program loads: a student as an ONNX file, in float32 or in eight bits."""
