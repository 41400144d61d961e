"""The hashes of pinned packages, and what each image installs of them.

    python tools/pins.py hash              ask the package index for the hashes of all files of all pinned versions (`make pins`)
    python tools/pins.py images FOLDER     write FOLDER/<service>/requirements.txt: what the service needs of requirements.txt

A pin is changed by hand (name==version, its old hashes left or removed); `make pins` writes the new ones. The first needs uv
(.venv-proto) and an index (UV_DEFAULT_INDEX, where it is not PyPI), the second only what is installed in .venv.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
UV = ROOT / ".venv-proto/bin/uv"
WHOLE = ("requirements.txt", "requirements-bench.txt", "requirements-proto.txt", "requirements-go.txt", "requirements-docs.txt")
"""Files that name all packages that they install."""
TORCH = "requirements-torch.txt"
IMAGES = {
    "controller": ("proto", "controller"),
    "cache_server": ("proto", "cache_server"),
    "trainer": ("proto", "trainer"),
}
"""The distributions in each service's image."""
PLATFORM = {"python_version": "3.12", "python_full_version": "3.12.12", "sys_platform": "linux", "platform_system": "Linux",
            "platform_machine": "x86_64", "os_name": "posix", "implementation_name": "cpython",
            "platform_python_implementation": "CPython"}  # fmt: skip
"""The platform of the images, not that of the machine that writes the files."""
OLDEST_PYTHON = "3.11.5"


def read_pins(file: Path) -> dict[str, str]:
    """Return each package's whole entry, hashes included, by the package's canonical name."""
    entries = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = re.findall(r"^\S.*(?:\n[ \t].*)*", entries, flags=re.MULTILINE)
    return {canonicalize_name(re.split(r"[=\s\[;]", entry)[0]): entry for entry in found}


def pin_of(entry: str) -> str:
    """Return name==version of an entry."""
    return entry.split()[0]


def write_hashes(root: Path) -> None:
    """Fetch all hashes again. Packages that only torch needs are resolved anew, by torch's own pins."""
    for name in WHOLE:
        pins = [pin_of(entry) for entry in read_pins(root / name).values()]
        _rewrite(root / name, _compile(pins, "--no-deps"))
    torch = pin_of(read_pins(root / TORCH)["torch"])
    resolved = _compile([torch], "--universal", "--constraint", str(root / "requirements.txt"))
    _rewrite(root / TORCH, {name: entry for name, entry in resolved.items() if name not in read_pins(root / "requirements.txt")})


def _compile(pins: list[str], *options: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "pins.in", Path(folder) / "pins.txt"
        source.write_text("\n".join(pins) + "\n", encoding="utf-8")
        subprocess.run(
            [UV, "pip", "compile", source, "--output-file", target, "--generate-hashes", "--no-header", "--no-annotate",
             "--quiet", "--python-version", OLDEST_PYTHON, *options], check=True)  # fmt: skip
        return read_pins(target)


def _rewrite(file: Path, entries: dict[str, str]) -> None:
    heading = re.match(r"(#.*\n)*", file.read_text(encoding="utf-8"))
    assert heading is not None
    file.write_text(heading.group() + "".join(f"{entries[name]}\n" for name in sorted(entries)), encoding="utf-8")


def write_images(root: Path, target: Path) -> None:
    """Write one file for each service: the closure of its distributions' dependencies, with the hashes of requirements.txt."""
    pins, torch = read_pins(root / "requirements.txt"), read_pins(root / TORCH)
    for service, distributions in IMAGES.items():
        needed = closure(
            [one for name in distributions for one in declared(root / name / "pyproject.toml")], set(pins), set(torch)
        )
        heading = f"# Made by `make proto` of requirements.txt: what the image of {service} needs, also to build.\n"
        text = heading + "".join(f"{pins[name]}\n" for name in sorted(needed | {"setuptools"}))
        (target / service).mkdir(parents=True, exist_ok=True)
        (target / service / "requirements.txt").write_text(text, encoding="utf-8")


def declared(pyproject: Path) -> list[Requirement]:
    """Return the requirements of one of the project's distributions, without the project's own distributions."""
    asked = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    return [one for one in map(Requirement, asked) if not one.name.startswith("frostline-")]


def closure(wanted: list[Requirement], pinned: set[str], elsewhere: set[str]) -> set[str]:
    """Return the names of `pinned` in the closure of the wanted requirements, on PLATFORM.

    elsewhere: names that another file installs.
    """
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        if name not in pinned | elsewhere:
            raise SystemExit(f"pins: {name} is needed and not pinned")
        found |= {name} & pinned
        for extra in {"", *one.extras}:
            if (name, extra) not in seen and name in pinned | {"torch"}:
                seen.add((name, extra))
                wanted += _asked_by(name, extra)
    return found


def _asked_by(name: str, extra: str) -> list[Requirement]:
    asked = [Requirement(text) for text in distribution(name).requires or ()]
    return [one for one in asked if one.marker is None or one.marker.evaluate(PLATFORM | {"extra": extra})]


if __name__ == "__main__":
    if sys.argv[1:] == ["hash"]:
        write_hashes(ROOT)
    elif sys.argv[1:2] == ["images"] and len(sys.argv) == 3:
        write_images(ROOT, Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
