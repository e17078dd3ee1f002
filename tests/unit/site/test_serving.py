"""`docs --serve` serves the site to this machine until SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from helpers.project import PROJECT

SERVE = "import sys; from pathlib import Path; from mirrorlake_lab.commands import serve_folder\n"
SERVE += "serve_folder(Path(sys.argv[1]), 0)"


def test_a_folder_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<h1>here</h1>", encoding="utf-8")
    paths = os.pathsep.join([str(PROJECT / "lib"), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-u", "-c", SERVE, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urlopen(address) as page:
            assert page.read() == b"<h1>here</h1>"
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
