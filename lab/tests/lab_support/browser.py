"""Chromium, headless, through its DevTools protocol on a pair of pipes: the standard library is enough for that.

With --remote-debugging-pipe it reads commands from file descriptor 3 and writes answers and events to 4: JSON, each ended
by a zero byte. A window has a least width of about 500 pixels; a smaller one is emulated.
"""

import base64
import fcntl
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
PATIENCE = 60.0  # seconds for one answer
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars")
Message = dict[str, Any]


class Browser:
    """A browser without a profile; use it as a context manager."""

    def __init__(self, profile: Path) -> None:
        self.profile = profile
        self._last = 0
        self._buffer = b""
        self._events: list[Message] = []

    def __enter__(self) -> "Browser":
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        # 3 and 4 may be taken here: move the child's ends above them before the child copies them there.
        high_in, high_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out))

        def hand_over() -> None:
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        assert CHROMIUM is not None
        command = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, close_fds=False, preexec_fn=hand_over, **quiet)  # type: ignore[call-overload]
        for end in (theirs_in, theirs_out, high_in, high_out):
            os.close(end)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.call("Browser.close")
                self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._write)
            os.close(self._read)

    def call(self, method: str, session: str | None = None, **params: Any) -> Message:
        """Send a command and wait for its answer; events that come in between are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._events.append(answer)

    def wait_for(self, method: str, session: str) -> Message:
        """The first event of this name, now or later."""
        while True:
            for event in self._events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event
            self._events.append(self._next())

    def events(self, method: str, session: str) -> list[Message]:
        return [
            event["params"] for event in self._events if (event.get("method"), event.get("sessionId")) == (method, session)
        ]

    def _next(self) -> Message:
        limit = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, limit - time.monotonic()))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError(f"chromium gave no answer (exit status {self._process.poll()})")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


class Tab:
    """A page, opened at a width and in a colour scheme."""

    def __init__(self, browser: Browser, path: Path, width: int, scheme: str = "light") -> None:
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = str(browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=path.resolve().as_uri())
        browser.wait_for("Page.loadEventFired", self.session)

    def _call(self, method: str, **params: Any) -> Message:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console shows: errors and warnings of the page, of its scripts and of the browser."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        said = [event["entry"] for event in self.browser.events("Log.entryAdded", self.session)]
        shown = [entry["text"] for entry in said if entry["level"] in ("error", "warning")]
        called = self.browser.events("Runtime.consoleAPICalled", self.session)
        shown += [str(event["args"]) for event in called if event["type"] in ("error", "warning", "assert")]
        thrown = self.browser.events("Runtime.exceptionThrown", self.session)
        return shown + [str(event["exceptionDetails"]) for event in thrown]

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [event["request"]["url"] for event in self.browser.events("Network.requestWillBeSent", self.session)]

    def screenshot(self, path: Path, whole: bool = True) -> None:
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
