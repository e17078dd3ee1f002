"""Builds a wheel that carries the notebooks, their parameters and the plans; see pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
# What `pytest --nbval` needs is carried, too: copies are tested as the originals are.
CARRIED = {
    "notebooks": ("*.ipynb", "conftest.py", "pytest.ini", "sanitize.cfg"),
    "parameters": ("*.yaml",),
}


class BuildWithNotebooks(build_py):
    """Copies them into the package; an editable install finds them where they are."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if self.editable_mode:
            return
        for name, patterns in CARRIED.items():
            for path in sorted(p for one in patterns for p in (HERE / name).rglob(one)):
                if ".ipynb_checkpoints" in path.parts:
                    continue
                place = Path(self.build_lib) / "mirrorlake" / "carried" / path.relative_to(HERE)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)


setup(cmdclass={"build_py": BuildWithNotebooks})
