"""Makes src/phasewatch/recordings/demo.tar.xz, which `phasewatch demo` serves, from captures of a real vLLM.

    python scripts/make_demo_recordings.py [CAPTURES]

Pages are the captured ones, byte for byte; only stretches are chosen, and times count from each stretch's begin. One
solid archive, since pages of one server hardly differ: three replicas take 70 kB instead of a megabyte.
"""

import gzip
import io
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "phasewatch" / "recordings" / "demo.tar.xz"

# target: (capture, first second, last second). Both healthy ones have light steady traffic at different loads; the
# burst of 40 requests on 8 slots comes 14 s after its stretch begins, and is digested at its end.
REPLICAS = {
    "vllm-0": ("healthy", 10.0, 106.0),
    "vllm-1": ("slow-engine", 2.0, 58.0),
    "vllm-2": ("burst", 6.0, 118.5),
}


def main() -> None:
    captures = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT.parent / "shared" / "captures"
    with tarfile.open(OUT, "w:xz", preset=9) as archive:
        for target, (capture, first, last) in REPLICAS.items():
            for path in sorted((captures / capture / "demo").glob("*.prom.gz")):
                second = float(path.name.removesuffix(".prom.gz"))
                if first <= second <= last:
                    page = gzip.decompress(path.read_bytes())
                    member = tarfile.TarInfo(f"{target}/{second - first:07.2f}.prom")
                    member.size = len(page)
                    archive.addfile(member, io.BytesIO(page))
    print(f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
