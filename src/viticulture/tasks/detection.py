# SPDX-License-Identifier: Apache-2.0
"""Detection: boxes of objects, and masks where the run learns them."""

from collections.abc import Sequence

from torch import nn

from ..analysis.annotated_pictures import save_annotated_pictures
from ..data.dataset import Dataset
from ..data.sources.source import Source
from ..errors import UserError, received
from ..evaluation.dense.judge import judge_dense, judge_other
from ..evaluation.dense.predict import predict_dense
from ..evaluation.dense.prediction import DensePrediction
from ..evaluation.dense.results import DenseEvaluations, read_dense
from ..evaluation.inputs import ImageInput
from ..evaluation.saved import name_of
from ..models.detection.networks import load_network
from .task import Evaluated, OtherImages, Task


class Detection(Task):
    """Boxes of objects, and masks where the run learns them."""

    name = "detection"
    does = "finds objects"
    measure = "AP"

    def evaluate(self, dataset: Dataset) -> Evaluated:
        return Evaluated(judge_dense(self.run, dataset))

    def evaluate_other(self, data: str | Source) -> OtherImages:
        if not isinstance(data, str):
            raise UserError(f"{self.run.path} is evaluated on files with annotations: name them, got {received(data)}")
        results, warnings = judge_other(self.run, data)
        return OtherImages(name_of(data), Evaluated(results), warnings)

    def read_results(self) -> DenseEvaluations | None:
        return read_dense(self.run)

    def save_pictures(self, dataset: Dataset, evaluated: Evaluated) -> None:
        save_annotated_pictures(self.run, dataset, evaluated.results)  # type: ignore[arg-type]

    def predict(
        self, images: Sequence[ImageInput], weights: str = "", top: int = 1, out: str = ""
    ) -> list[DensePrediction]:
        if top != 1:
            raise UserError(f"{self.run.path} {self.does}, and there is no list of likeliest classes; leave top out")
        return predict_dense(self.run, weights, images, out)

    def network(self, weights: str = "") -> nn.Module:
        return load_network(self.run.weights(weights or self.run.which()[0]))[0]
