# SPDX-License-Identifier: Apache-2.0
"""Measure and print how costs grow.

python -m benchmarks.growth [images] [studies]
"""

import importlib
import os
import sys


def main() -> None:
    """Print a line a measurement."""
    print(f"{'':56} {'size':>13} {'processor s':>12} {'wall s':>8} {'MB':>7} {'load':>5}")
    for name in sys.argv[1:] or ("images", "studies"):
        for row in importlib.import_module(f"benchmarks.growth.{name}").measure():
            wall = f"{row.wall:8.1f}" if row.wall else " " * 8
            line = f"{row.what:56} {row.size:13,} {row.seconds:12.4f} {wall} {row.megabytes:7,.0f}"
            print(f"{line} {os.getloadavg()[0]:5.1f}", flush=True)


if __name__ == "__main__":
    main()
