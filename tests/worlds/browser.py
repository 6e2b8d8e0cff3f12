"""A person at Airflow's pages: a Chromium without a window, spoken to by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from demo.airflow.service import USER, AirflowService
from streamkeeper.settings import PROJECT
from tools import browser
from tools.waiting import NeverCame, wait_until

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--remote-debugging-pipe",
    "--window-size=1280,800",
)
SECONDS = 120
MISSED = "missed"
SCREENSHOTS = "STREAMKEEPER_SCREENSHOTS"
"""Names the folder that pictures are written to; unset, they go to the test's own folder."""
LEFTOVERS = ("<", "127.0.0.1:", "/tmp/", str(PROJECT))
"""What a picture for readers never shows: markup of a test, and places of the machine that took it."""
VISIBLE = """
const all = selector => [...document.querySelectorAll(selector)].filter(
    one => one.checkVisibility({visibilityProperty: true}) && one.getBoundingClientRect().width);
const moves = () => document.getAnimations().some(
    one => one.playState === "running" && one.effect.getComputedTiming().iterations !== Infinity);
"""
AT = """
const [one] = all(%s);
if (!one || moves()) return null;
if (%s) one.scrollIntoView({block: "center"});
const box = one.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
const hit = document.elementFromPoint(x, y);
return hit && (one.contains(hit) || hit.contains(one)) ? [x, y] : null;
"""
"""Where an element is, unless it is outside the window, something covers it, or the page still moves."""

PARTS = """
const parts = %s.map(one => all(one)[0]);
if (parts.includes(undefined) || moves()) return null;
const boxes = parts.map(one => one.getBoundingClientRect());
const x = Math.min(...boxes.map(box => box.left)), right = Math.max(...boxes.map(box => box.right));
const y = Math.min(...boxes.map(box => box.top)), bottom = Math.max(...boxes.map(box => box.bottom));
const inside = box => box.right > x && box.left < right && box.bottom > y && box.top < bottom;
const texts = all("body *").filter(one => inside(one.getBoundingClientRect())
    && [...one.childNodes].some(child => child.nodeType === Node.TEXT_NODE)).map(one => one.textContent);
return {text: texts.join("\\n"), clip: {x, y, width: right - x, height: bottom - y, scale: 1}};
"""
"""The rectangle around elements, and all texts in it, once the page stands still."""


def check_for_readers(text: str) -> None:
    """Check the text of a picture for readers.

    :raises ValueError: it shows what :data:`LEFTOVERS` names.
    """
    shown = [mark for mark in LEFTOVERS if mark in text]
    if shown:
        raise ValueError(f"A picture for readers shows {', '.join(map(repr, shown))}, in: {text}")


class Person:
    """Somebody who is logged in. Every look waits for what it looks for.

    :raises tools.browser.BrowserError: there is no browser.
    """

    def __init__(
        self, service: AirflowService, folder: Path, user: str = USER, password: str | None = None
    ) -> None:
        self._user, self._password = user, password or service.password
        self._service, self._pictures = service, Path(os.environ.get(SCREENSHOTS) or folder)
        program = (str(browser.program()), *ARGUMENTS, f"--user-data-dir={folder / 'profile'}")
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                # Chromium reads from descriptor 3 and answers at 4.
                ("sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >&2', "browser", *program),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **browser.environment()},
            )
        self._number, self._session = 0, {}
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session: dict[str, str] = {"sessionId": session}
        self._ask("Page.enable")  # or no script is added to pages

    def close(self) -> None:
        """Close the browser."""
        self._process.terminate()
        self._process.communicate()

    def visit(self, path: str) -> None:
        """Open a page, logging in where Airflow asks for it."""
        self._ask("Page.navigate", url=f"{self._service.url}{path}")
        home, name = "[data-testid=nav-home-link], a[aria-label=Home]", "input[name=username]"
        if self._wait(f"return all({json.dumps(home)}).length ? 1 : all('{name}').length ? 2 : 0", path) == 2:
            self.write(name, self._user)
            self.write("input[type=password]", self._password)
            self.click("button[type=submit]")
            self._wait("return !location.pathname.includes('/auth/login')", "the login is over")

    def answers(self, path: str, value: Any) -> None:
        """Let the pages that are opened from now on get a value where they ask for a path."""
        faked = f"new URL(asked, document.baseURI).pathname.endsWith({json.dumps(path)})"
        answer = f"new Response({json.dumps(json.dumps(value))}, {{status: 200}})"
        source = (
            f"{{ const ask = window.fetch; window.fetch = async (asked, ...more) =>"
            f" typeof asked === 'string' && {faked} ? {answer} : ask(asked, ...more); }}"
        )
        self._ask("Page.addScriptToEvaluateOnNewDocument", source=source)

    def resize(self, width: int, height: int = 800, sharpness: int = 1) -> None:
        """Give the window another size; ``sharpness`` is how many pixels one of the page's becomes."""
        size = {"width": width, "height": height, "deviceScaleFactor": sharpness, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def show_for_readers(self, width: int, height: int) -> None:
        """Show the pages that are opened from now on in the light theme and twice as sharp."""
        self.resize(width, height, sharpness=2)
        self.await_that("localStorage.setItem('theme', 'light') || 1", "the theme is chosen")

    def type_key(self, key: str, code: int, text: str = "") -> None:
        """Press one key; ``code`` is its Windows key code, ``text`` what it writes."""
        for event in ("keyDown", "keyUp"):
            typed = {"text": text} if event == "keyDown" and text else {}
            self._ask("Input.dispatchKeyEvent", type=event, key=key, windowsVirtualKeyCode=code, **typed)

    def await_that(self, expression: str, what: str) -> Any:
        """Wait until an expression of JavaScript is neither false nor empty; return it. ``all(selector)``
        gives the visible elements of a CSS selector.
        """
        return self._wait(f"return {expression}", what)

    def click(self, selector: str, across: float = 0.5) -> None:
        """Click on the first visible element of a CSS selector, as soon as nothing covers it.

        :param across: where, as a part of its width.
        """
        at = AT.replace("box.width / 2", f"box.width * {across}")
        x, y = self._wait(at % (json.dumps(selector), "true"), f"{selector} can be clicked")
        for event in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)

    def on_screen(self, words: str) -> None:
        """Wait until a button with these words is in the window, without scrolling."""
        mark = "for (const one of all('button')) if (one.innerText.trim() === %s) one.dataset.asked = 1;"
        look = mark % json.dumps(words) + AT % ('"[data-asked]"', "false")
        self._wait(f"{look}", f"the button {words!r} is on the screen")
        self._js("for (const one of all('[data-asked]')) delete one.dataset.asked")

    def press(self, words: str) -> None:
        """Click on the button with these words."""
        mark = "const [one] = all('button').filter(one => one.innerText.trim() === %s);"
        self._wait(f"{mark % json.dumps(words)} return one && (one.dataset.asked = 1)", f"a button {words!r}")
        self.click("[data-asked]")

    def enabled(self, selector: str) -> bool:
        """Wait for an element; return whether it can be used."""
        return self._of(selector, "one.disabled ? 'no' : 'yes'") == "yes"

    def read(self, words: str) -> str:
        """Wait until words are on the page; return all of its text."""
        text = "const text = document.body.innerText; "
        return str(self._wait(f"{text} return text.includes({json.dumps(words)}) && text", repr(words)))

    def reads(self, selector: str, words: str) -> None:
        """Wait until an element has words in it."""
        text = f"const [one] = all({json.dumps(selector)}); return one && one.innerText.includes("
        self._wait(f"{text}{json.dumps(words)})", f"{words!r} in {selector}")

    def picture(self, name: str, **more: Any) -> Path:
        """Save what is on the screen as ``<name>.png``; ``more`` is for the browser."""
        if name != MISSED:
            self._wait("return !moves()", "the page stands still")
        self._pictures.mkdir(parents=True, exist_ok=True)
        file = self._pictures / f"{name}.png"
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", **more)["data"]))
        return file

    def crop(self, name: str, *selectors: str) -> Path:
        """Save the first visible elements of some CSS selectors, with what is between them, for readers.

        :raises ValueError: they show what is of a test or of this machine.
        """
        part = self._wait(PARTS % json.dumps(selectors), f"{', '.join(selectors)} on the page")
        check_for_readers(part["text"])
        return self.picture(name, clip=part["clip"])

    def await_dags(self, ids: set[str]) -> None:
        """Wait until the list of DAGs has links to these, and to no other."""
        ids_shown = "all(LINKS).map(link => link.pathname.split('/dags/')[1].split('/')[0])"
        shown = f"const LINKS = 'a[href*=\"/dags/\"]'; const ids = [...new Set({ids_shown})].sort();"
        wanted = json.dumps(sorted(ids))
        self._wait(f"{shown} return ids.join() === {wanted}.join()", f"the list has {wanted}")

    def open_section(self, title: str) -> None:
        """Open a section of the form in front, unless it is open."""
        button = f"[role=dialog] button[id$='trigger:{title}']"
        state = "one.getAttribute('aria-expanded')"
        if self._of(button, state) != "true":
            self.click(button)
        self._wait(f"const [one] = all({json.dumps(button)}); return {state} === 'true'", f"{title} is open")

    def chosen(self, field: str) -> str:
        """Return what is chosen in a field of the form."""
        return self._of(f"#element_{field}", "one.innerText")

    def boxes_of_json(self) -> int:
        """Return how many editors of JSON the form in front shows, with all of its sections open."""
        return int(self._js("return all('[role=dialog] .cm-editor').length") or 0)

    def switch(self, field: str) -> None:
        """Flip a switch of the form."""
        state = f"document.querySelector('input[name=element_{field}]').checked"
        before = self._js(f"return {state}")
        self.click(f"label:has(input[name=element_{field}])")
        self._wait(f"return {state} !== {json.dumps(before)}", f"{field} is switched")

    def write(self, selector: str, text: str) -> None:
        """Write into a field."""
        self.click(selector)
        self._ask("Input.insertText", text=text)

    def _of(self, selector: str, expression: str) -> str:
        """Wait for an element, and return the text that an expression makes of it."""
        return str(
            self._wait(f"const [one] = all({json.dumps(selector)}); return one && {expression}", selector)
        )

    def _wait(self, body: str, what: str) -> Any:
        """Wait until the body of a JavaScript function returns something; what is on the page is in the
        message if it never does.
        """
        look = cast("Callable[[], Any]", lambda: self._js(body) or None)
        try:
            return wait_until(look, SECONDS, what)
        except NeverCame as error:
            where = self._js("return `${location}:\\n${document.body.innerText.slice(0, 3000)}`")
            raise NeverCame(f"{error} On the screen ({self.picture(MISSED)}): {where}") from error

    def _js(self, body: str) -> Any:
        """Return what the body of a JavaScript function returns; None where it fails, as on a page that is
        not there yet.
        """
        expression = f"(() => {{ {VISIBLE} {body} }})()"
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return None if "exceptionDetails" in answer else answer.get("result", {}).get("value")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the browser's answer to one command; nothing where the page went away meanwhile."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters, **self._session}
        writer, reader = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        writer.write(json.dumps(asked).encode() + b"\0")
        writer.flush()
        while (answer := self._message(reader)).get("id") != self._number:
            pass
        return cast("dict[str, Any]", answer.get("result", {}))

    def _message(self, reader: IO[bytes]) -> dict[str, Any]:
        text = bytearray()
        while (byte := reader.read(1)) != b"\0":
            if not byte:
                raise RuntimeError(f"The browser ended with {self._process.wait()}; its log is browser.log.")
            text += byte
        return cast("dict[str, Any]", json.loads(text))
