# SPDX-License-Identifier: Apache-2.0
"""Export to ONNX, in float32 or int8."""
