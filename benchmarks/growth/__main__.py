# SPDX-License-Identifier: Apache-2.0
"""Measure and print how costs grow.

python -m benchmarks.growth [images] [studies]
"""

import importlib
import os
import sys


def main() -> None:
    """Print a line a measurement."""
    print(f"{'':56} {'size':>9} {'processor s':>12} {'MB':>7}    (load {os.getloadavg()[0]:.1f})")
    for name in sys.argv[1:] or ("images", "studies"):
        for row in importlib.import_module(f"benchmarks.growth.{name}").measure():
            print(f"{row.what:56} {row.size:9,} {row.seconds:12.4f} {row.megabytes:7,.0f}", flush=True)


if __name__ == "__main__":
    main()
