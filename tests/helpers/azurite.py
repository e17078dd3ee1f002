"""Azurite, the emulator of Azure's blob store, installed once from npm into the cache.

It has no endpoint for ADLS Gen2, which Hadoop needs, so tests use obstore only.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from helpers.ports import free_port
from mirrorlake.storage import paths

VERSION = "3.37.0"
CONTAINER = "lakes"
# What every emulator has; it opens nothing.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_INSTALL_SECONDS = 900


def _install(folder: Path) -> None:
    command = ["npm", "install", "--no-audit", "--no-fund", f"azurite@{VERSION}"]
    folder.mkdir()
    subprocess.run(
        [*command, "--prefix", str(folder)],
        check=True,
        capture_output=True,
        timeout=_INSTALL_SECONDS,
    )


class Azurite:
    """An emulator with one container; `close` stops it and deletes its folder."""

    def __init__(self) -> None:
        folder = paths.cache() / "servers" / f"azurite-{VERSION}"
        program = folder / "node_modules" / ".bin" / "azurite-blob"
        if shutil.which("npm") is None:
            pytest.skip("needs Azurite, which is installed with npm: there is no npm on the PATH")
        try:
            paths.make_once(folder, program.exists, partial(_install))
        except subprocess.SubprocessError as error:
            pytest.skip(f"needs Azurite {VERSION}, which could not be installed: {error}")
        self._folder = Path(tempfile.mkdtemp(prefix="mlaz-"))
        self.port = free_port()
        self._process = subprocess.Popen(
            [str(program), "--blobPort", str(self.port), "--location", str(self._folder),
             "--silent", "--skipApiVersionCheck"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until, "Azurite did not start"
                assert self._process.poll() is None, "Azurite did not start"
                time.sleep(0.1)
        try:
            self._make_container()
        except Exception:
            self.close()
            raise

    def _make_container(self) -> None:
        from pyarrow.fs import AzureFileSystem

        authority = f"127.0.0.1:{self.port}"
        AzureFileSystem(
            ACCOUNT,
            account_key=KEY,
            blob_storage_authority=authority,
            dfs_storage_authority=authority,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        ).create_dir(CONTAINER)

    def variables(self) -> dict[str, str]:
        """Return the standard variables for the emulator."""
        return {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{self.port}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }

    def close(self) -> None:
        """Stop the emulator."""
        self._process.kill()  # asked to end, it waits for its clients
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)
