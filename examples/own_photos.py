# SPDX-License-Identifier: Apache-2.0
"""Train on a folder of images, look at the results, predict a new image.

python examples/own_photos.py [FOLDER]       FOLDER/CLASS/*.jpg; without it digits are written to ./digits
"""

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

import viticulture


def write_digits(folder: Path) -> Path:
    """Write 600 handwritten digits of scikit-learn as FOLDER/CLASS/*.png."""
    digits = load_digits()
    for number, (pixels, digit) in enumerate(zip(digits.images[:600], digits.target[:600], strict=True)):
        path = folder / str(digit) / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype("uint8")).resize((32, 32)).save(path)
    return folder


def main(folder: str | Path, epochs: int = 20, out: str = "") -> viticulture.Run:
    """Train for some epochs and print what came out."""
    run = viticulture.train(str(folder), epochs=epochs, student="dhvt_nano", out=out)
    print(f"{run.accuracy:.1%} of the test images are correct; report: {run.report}")
    image = next(Path(folder).rglob("*.*"))
    prediction = run.predict(str(image))[0]
    print(f"{image}: {prediction.label}")
    return run


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else write_digits(Path("digits")))
