"""Makes UniLab's Go2 run without a download, in the working directory: `python prepare.py` once.

UniLab's wheel looks for its robots in `src/unilab` of the working directory, and fetches Go2's meshes from a hub. The
meshes are only drawn: masses and collision shapes are in the XML, so a small tetrahedron in the place of each gives the
same dynamics.
"""

import re
from importlib.util import find_spec
from pathlib import Path

TETRAHEDRON = "".join(
    [f"v {x} {y} {z}\n" for x, y, z in ((0, 0, 0), (0.01, 0, 0), (0, 0.01, 0), (0, 0, 0.01))]
    + [f"f {a} {b} {c}\n" for a, b, c in ((1, 3, 2), (1, 2, 4), (1, 4, 3), (2, 3, 4))]
)


def main() -> None:
    spec = find_spec("unilab")
    if spec is None or spec.origin is None:
        raise SystemExit("UniLab is not installed: pip install 'unilab[mujoco]==1.5.2'")
    package, link = Path(spec.origin).parent, Path("src/unilab")
    link.parent.mkdir(exist_ok=True)
    if not link.exists():
        link.symlink_to(package, target_is_directory=True)
    robot = package / "assets/robots/go2"
    names = {name for xml in robot.glob("*.xml") for name in re.findall(r'file="([^"]+\.obj)"', xml.read_text())}
    for name in names:
        mesh = robot / "assets" / name
        mesh.parent.mkdir(parents=True, exist_ok=True)
        if not mesh.exists():
            mesh.write_text(TETRAHEDRON)


if __name__ == "__main__":
    main()
