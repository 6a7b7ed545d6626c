# SPDX-License-Identifier: Apache-2.0
"""A real browser for tests: headless Chromium, driven through a pipe by its protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars"]
FLAGS += ["--remote-debugging-pipe"]

PATIENCE = 600.0  # seconds after which a browser is taken for stuck


class Browser:
    """A page in a browser, closed with the context; `profile` is an empty folder for its files."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()

        def place() -> None:  # the browser reads from 3 and writes to 4
            reading, writing = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            command, preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.reading, self.writing, self.left = ours_in, ours_out, b""
        self.number = 0
        self.events: list[dict[str, Any]] = []
        self.session = ""
        (target,) = [t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        found = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.reading)
        os.close(self.writing)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its reply."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self.number:
                assert "error" not in found, found["error"]
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def open(self, page: Path | str, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Open a file or an address at a size and color scheme, and wait until it has loaded."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """Return a script's value."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def choose(self, selector: str, files: list[Path]) -> None:
        """Select files in a file input."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def wait(self, condition: str) -> None:
        """Wait until an expression of the page is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"{condition} does not come true"
            self.value("new Promise((done) => setTimeout(done, 10))")

    def value(self, promise: str) -> Any:
        """Return the value of a promise."""
        found = self.ask("Runtime.evaluate", expression=promise, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Return errors and warnings since the page was opened."""
        self.run("0")
        said = [e["params"] for e in self.events if e.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
        return [json.dumps(one) for one in said]

    def requests(self) -> list[str]:
        """Return the addresses that the page requested, without itself and embedded data."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "file:"))]

    def picture(self, path: Path) -> None:
        """Return the whole page as a PNG."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self, patience: float = PATIENCE) -> dict[str, Any]:
        """Read the next message."""
        end = time.monotonic() + patience
        while b"\0" not in self.left:
            ready, _, _ = select.select([self.reading], [], [], end - time.monotonic())
            assert ready, "the browser does not answer"
            self.left += os.read(self.reading, 1 << 20)
        message, _, self.left = self.left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
