"""Makes src/phasewatch/recordings/demo.tar.xz, which `phasewatch demo` serves, from recordings/ of a real vLLM.

    python scripts/make_demo_recordings.py

Pages are the recorded ones, byte for byte; only stretches are chosen, and times count from each stretch's begin. One
solid archive, since pages of one server hardly differ: three replicas take 70 kB instead of a megabyte.
"""

import io
import tarfile
from pathlib import Path

from phasewatch.sources.packed import SUFFIX, open_packed
from phasewatch.sources.recording import timeline

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "phasewatch" / "recordings" / "demo.tar.xz"

# target: (recording, first second, last second). Both healthy ones have light steady traffic at different loads; the
# burst of 40 requests on 8 slots comes 14 s after its stretch begins, and is digested at its end.
REPLICAS = {
    "vllm-0": ("healthy", 10.0, 106.0),
    "vllm-1": ("slow-engine", 2.0, 58.0),
    "vllm-2": ("burst", 6.0, 118.5),
}


def main() -> None:
    with tarfile.open(OUT, "w:xz", preset=9) as archive:
        for target, (name, first, last) in REPLICAS.items():
            for second, _, entry in timeline(open_packed(str(ROOT / "recordings" / f"{name}{SUFFIX}"))):
                if first <= second <= last and entry.kind == "page":
                    page = entry.read().encode()
                    member = tarfile.TarInfo(f"{target}/{second - first:07.2f}.prom")
                    member.size = len(page)
                    archive.addfile(member, io.BytesIO(page))
    print(f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
