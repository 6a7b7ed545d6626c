# SPDX-License-Identifier: Apache-2.0
"""Step times of students of any size on images of any size, before any image is decoded: by a few steps on noise."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from ..config.resolve import Config, plan_of
from ..data.dataset import Dataset, ImageSettings
from ..data.image_set import CachedImages, Images, Records
from ..data.image_settings import choose_cache_size, choose_image_size, normalization
from ..data.sources.source import Source
from ..data.splits import check_classes, select, with_number_ranges
from ..data.statistics import sample_sizes
from ..errors import UserError
from ..models.data_spec import DataSpec
from ..models.students import count
from ..models.vit.patches import check as check_vit
from ..models.weights.files import save
from ..study.step_times import MAX_SECONDS, MAX_STEPS, StepTimes, measure_step_times
from ..training.assemble import data_spec_of, student_of
from ..training.data import load_dataset
from ..training.half_precision import compare_gradients
from .choices import MAX_EPOCHS
from .recipes import in_bfloat16

MEASURING_SHARE = 0.005
"""Share of a budget for which each considered stage is measured, where that is more than the default."""
MAX_SHARE = 0.05
"""Share of the longest stage's steps at which that ends: beyond what a budget can use, measuring would take it all."""
DIFFERENT = 64  # images of noise; each stands for many
PRODUCT, PRODUCTS = 512, 7  # side and number of the matrix products that time bfloat16
WORTH = 0.9  # mixed precision rounds; it is taken where an epoch takes at most this share of the time


@dataclass(frozen=True)
class Measurements:
    """Measures trainings on some images."""

    source: Source
    seed: int
    folder: Path
    now: Callable[[], float]
    seconds: float = 0.0  # of the budget; a long one is worth more steps

    @cached_property
    def sizes(self) -> np.ndarray:
        """Height and width of some of the images, [n, 2], pixels."""
        return sample_sizes(self.source)

    @property
    def side(self) -> int:
        """The image size that suits the images, whatever it costs."""
        return choose_image_size(self.sizes)

    def estimated(self, config: Config) -> StepTimes:
        """Return step times on noise of the images' number and size; on the images where they are streamed."""
        return replace(self, seconds=0.0).step_times(config, self._noise(config))

    def step_times(self, config: Config, dataset: Dataset) -> StepTimes:
        """Return step times on a data set."""
        images = len(dataset.trained_on)
        steps = MAX_SHARE * MAX_EPOCHS * images / plan_of(config, images).batch_size
        patience = max(1.0, min(MEASURING_SHARE * self.seconds / MAX_SECONDS, steps / MAX_STEPS))
        return measure_step_times(config, dataset, self.folder / "steps", self.seed, self.now, patience)

    @cached_property
    def bfloat16_is_fast(self) -> bool:
        """True if matrix products are faster in bfloat16; many processors emulate it."""
        seconds = {}
        for kind in (torch.float32, torch.bfloat16):
            matrix = torch.ones(PRODUCT, PRODUCT, dtype=kind)
            tries = [self._timed(partial(torch.mm, matrix, matrix)) for _ in range(PRODUCTS)]
            seconds[kind] = median(tries[1:])  # the first one loads the kernel
        return seconds[torch.bfloat16] < seconds[torch.float32]

    def fastest(self, config: Config, dataset: Dataset | None = None) -> tuple[Config, StepTimes]:
        """Return the config in the precision that trains faster here, where it leaves that open, and its step times.
        Where gradients are wrong in mixed precision it is float32, with a warning. `dataset`: its images; None for
        noise like them, on which gradients are not compared.
        """
        measure = self.estimated if dataset is None else partial(self.step_times, dataset=dataset)
        plain, mixed = measure(config), in_bfloat16(config)
        if mixed is None or not self.bfloat16_is_fast:
            return config, plain
        faster = measure(mixed)
        if faster.epoch >= WORTH * plain.epoch:
            return config, plain
        if dataset is not None and (fault := compare_gradients(mixed, dataset, self.seed).fault):
            warning = f"{config.student.name} trains in float32: in bfloat16 {fault}"
            return replace(config, warnings=(*config.warnings, warning)), plain
        return mixed, faster

    def _timed(self, work: Callable[[], object]) -> float:
        began = self.now()
        work()
        return self.now() - began

    def macs(self, config: Config) -> int:
        """Return the MACs of a config's student for one image."""
        images = config.images
        data_spec = DataSpec(self.source.classes, images.shape, *normalization("half", images.channels))
        return count(student_of(config, data_spec), data_spec.image_size, data_spec.channels)[1]

    def builds(self, config: Config) -> bool:
        """True if a config's student takes images of the config's size."""
        try:
            return self.macs(config) > 0
        except (UserError, RuntimeError, AssertionError, ValueError):
            return False

    def dummy_checkpoint(self, config: Config, dataset: Dataset, size: int | None = None, name: str = "dummy") -> str:
        """Return a folder, of this name, with random weights of a config's student, in place of a run that is not
        trained yet. `size`: side of its images, pixels; null for those of the data set.
        """
        folder, data_spec = self.folder / name, replace(data_spec_of(dataset), teacher_size=None)
        if size is not None:
            data_spec = replace(data_spec, image_size=(size, size))
        save(student_of(config, data_spec), folder, data_spec)
        return str(folder)

    def _noise(self, config: Config) -> Dataset:
        """Return what `load_dataset` would, with noise in place of pixels."""
        labeled = config.method_class.batch_spec.labels
        if labeled:
            check_classes(self.source, np.arange(len(self.source)))
        settings: ImageSettings = config.images
        assert settings.image_size is not None
        cache_size = settings.cache_size or choose_cache_size(settings.longest_input, self.sizes, settings.cache_margin)
        image_bytes = settings.channels * cache_size**2
        if settings.stream or (
            settings.stream is None and len(self.source) * image_bytes > settings.max_cache_gb * 1e9
        ):
            return load_dataset(self.source, config, self.seed)
        splits, _ = select(with_number_ranges(self.source), config.data, self.seed, labeled)
        generator = torch.Generator().manual_seed(0)
        shape = (DIFFERENT, settings.channels, cache_size, cache_size)
        pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        mean, std = normalization("half", settings.channels)
        size = torch.from_numpy(np.median(self.sizes, axis=0).astype(np.int32))

        images: dict[str, Images] = {}
        for kind, rows in splits.items():
            labels = torch.from_numpy(self.source.labels[rows])
            records = Records(labels, size.expand(len(labels), 2), [""] * len(labels))
            images[kind] = CachedImages(pixels, torch.arange(len(labels)) % DIFFERENT, records)
        return Dataset(
            self.source.name,
            self.source.classes if labeled else (),
            images,
            mean,
            std,
            replace(settings, cache_size=cache_size),
        )


def is_plain_vit(config: Config, dataset: Dataset) -> bool:
    """True if a config's student is a plain ViT, whose patches can be masked."""
    student = student_of(config, data_spec_of(dataset))
    try:
        check_vit(student)
    except UserError:
        return False
    return True
