"""A person at Airflow's pages: Debian's chromium, driven by its own chromedriver."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import (
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from demo.airflow_service import USER, AirflowService

CHROMIUM, CHROMEDRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)
SECONDS = 120
SCREENSHOTS = "STREAMKEEPER_SCREENSHOTS"
"""Names the folder that the README's pictures are written to; unset, they go to the test's own folder."""


class Person:
    """Somebody who is logged in. Every look waits for what it looks for.

    :raises RuntimeError: there is no browser.
    """

    def __init__(self, service: AirflowService, folder: Path) -> None:
        missing = [str(file) for file in (CHROMIUM, CHROMEDRIVER) if not file.exists()]
        if missing:
            raise RuntimeError(
                f"{', '.join(missing)} not found. Install them: apt-get install chromium chromium-driver."
            )
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for argument in (*ARGUMENTS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(argument)
        self._service, self._pictures = service, Path(os.environ.get(SCREENSHOTS) or folder)
        self._driver = webdriver.Chrome(options=options, service=Service(str(CHROMEDRIVER)))

    def close(self) -> None:
        """Close the browser."""
        self._driver.quit()

    def visit(self, path: str) -> None:
        """Open a page, logging in where Airflow asks for it."""
        self._driver.get(f"{self._service.url}{path}")
        self._wait(
            lambda: (
                "/auth/login" in self._driver.current_url
                or self._all("[data-testid=nav-home-link], a[aria-label=Home]")
            )
        )
        if "/auth/login" in self._driver.current_url:
            self.see("input[name=username]").send_keys(USER)
            self.see("input[type=password]").send_keys(self._service.password)
            self.see("button[type=submit]").click()
            self._wait(lambda: "/auth/login" not in self._driver.current_url)

    def see(self, selector: str) -> WebElement:
        """Give the first visible element of a CSS selector."""
        self._wait(lambda: self._all(selector))
        return self._all(selector)[0]

    def read(self, words: str) -> str:
        """Wait until words are on the page; give all of its text."""
        self._wait(lambda: words in self._text())
        return self._text()

    def picture(self, name: str) -> Path:
        """Save what is on the screen as ``<name>.png``."""
        self._pictures.mkdir(parents=True, exist_ok=True)
        file = self._pictures / f"{name}.png"
        assert self._driver.save_screenshot(str(file))
        return file

    def open_section(self, title: str) -> None:
        """Open a section of the form in front, unless it is open."""
        [button] = self._driver.find_elements(By.CSS_SELECTOR, f"[role=dialog] button[id$='trigger:{title}']")
        if button.get_attribute("aria-expanded") != "true":
            button.click()
        self._wait(lambda: button.get_attribute("aria-expanded") == "true")

    def choose(self, field: str, option: str) -> None:
        """Choose an option of a field of the form."""
        box = self.see(f"#element_{field} input[role=combobox]")
        box.send_keys(option)
        self._wait(lambda: self._driver.find_elements(By.CSS_SELECTOR, "[role=option]"))
        box.send_keys(Keys.ENTER)
        self._wait(lambda: option in self.see(f"#element_{field}").text)

    def chosen(self, field: str) -> str:
        """Return what is chosen in a field of the form."""
        return self.see(f"#element_{field}").text

    def boxes_of_json(self) -> int:
        """Return how many editors of JSON the form in front shows, with all of its sections open."""
        return len(self._all("[role=dialog] .cm-editor"))

    def switch(self, field: str) -> None:
        """Flip a switch of the form."""
        switch = self._driver.find_element(By.CSS_SELECTOR, f"input[name=element_{field}]")
        before = switch.is_selected()
        switch.find_element(By.XPATH, "./ancestor::label[1]").click()
        self._wait(lambda: switch.is_selected() != before)

    def wait_for_page(self, part: str) -> str:
        """Wait until the address has a part; give it."""
        self._wait(lambda: part in self._driver.current_url)
        return str(self._driver.current_url)

    def _all(self, selector: str) -> list[WebElement]:
        return [item for item in self._driver.find_elements(By.CSS_SELECTOR, selector) if item.is_displayed()]

    def _text(self) -> str:
        return str(self._driver.find_element(By.TAG_NAME, "body").text)

    def _wait(self, look: Callable[[], object]) -> None:
        """Wait until ``look`` gives something; what is on the page is in the message if it never does."""
        try:
            WebDriverWait(
                self._driver,
                SECONDS,
                ignored_exceptions=[StaleElementReferenceException, NoSuchElementException],
            ).until(lambda _: look())
        except TimeoutException as error:
            raise TimeoutError(
                f"Not seen on {self._driver.current_url} ({self.picture('missed')}):\n{self._text()[:3000]}"
            ) from error
