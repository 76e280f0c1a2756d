"""Fetch the plotting library of the report anew: `python core/vendor/fetch_uplot.py`. Needs npm; the built package does not.

uPlot (MIT, Leon Sorokin) is 50 kB and draws on a canvas. Its files are committed as they come in its package, so that
building and installing vime needs no JavaScript tools. `VERSION` and `SHA256` say what they are; a test compares.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "1.6.32"
SHA256 = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
SOURCES = {
    "uPlot.iife.min.js": "package/dist/uPlot.iife.min.js",
    "uPlot.min.css": "package/dist/uPlot.min.css",
    "uPlot.LICENSE": "package/LICENSE",
}
ASSETS = Path(__file__).resolve().parents[1] / "src" / "vime" / "report" / "assets"


def main() -> int:
    """Write the files; exit code 1 when they are not the ones expected."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"uplot@{VERSION}"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(Path(folder) / f"uplot-{VERSION}.tgz") as package:
            for name, member in SOURCES.items():
                file = package.extractfile(member)
                assert file is not None
                content = file.read()
                if hashlib.sha256(content).hexdigest() != SHA256[name]:
                    sys.stderr.write(f"{name} is not the file that SHA256 names\n")
                    return 1
                (ASSETS / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
