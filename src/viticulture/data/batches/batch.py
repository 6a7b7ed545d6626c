# SPDX-License-Identifier: Apache-2.0
"""The type of a batch, from the loader to the losses."""

from torch import Tensor

TEACHER_IMAGE = "teacher_image"

Batch = dict[str, Tensor]
"""Images of one step, or of one pass over held-out images, by these names. (Objects and masks: targets.py.)

    image  [B, channels, H, W] float, normalized
    teacher_image [B, channels, h, w] float, the same crop and changes of `image` in another size, where the recipe has
           one for teachers (`images.teacher_size`)
    label  [B] int64, or [B, C] float once mixup or smoothing made it a distribution; of several labels an image always
           [B, C] float, 1 for each class in the image
    index  [B] int64, the image's number in its split
    class_weight [B] float, N / (C n) of the image's class with n of N held-out images, where classes count alike
    image2 [B, channels, H, W] float, the second view, where the recipe has one (`augment2`)
    image3 [B, channels, h, w] float, and so on: local crops, where the method needs them (`augment_local_crops`)
    noise  [B, N] float in [0, 1), where the method needs it
    kept   [B, K] int64, the visible patches, where the method masks the others
"""
