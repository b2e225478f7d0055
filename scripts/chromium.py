"""A headless Chromium for the scripts that look at pages, over its own protocol, and what they ask of every page."""

import fcntl
import json
import os
import shutil
import subprocess
import time

# Contrast that small text needs (WCAG 2, level AA).
CONTRAST = 4.5
# No step takes a tenth of this.
PATIENCE = 60.0


def find_chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


# Every text and the colour behind it; returns those with too little between them.
LOW_CONTRAST = """(() => {
  const rgb = text => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; })
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !element.getClientRects().length || element.closest('svg')) continue;
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < %s) found.add(`${ratio.toFixed(2)} ${element.tagName} ${walk.currentNode.textContent.trim().slice(0, 30)}`);
  }
  return [...found];
})()""" % CONTRAST

# Headings that skip a level, names that are missing, ids that are not one.
STRUCTURE = """(() => {
  const found = [];
  let level = 0;
  for (const heading of document.querySelectorAll('h1,h2,h3,h4')) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) found.push(`heading ${heading.textContent.trim()} skips a level`);
    level = next;
  }
  for (const control of document.querySelectorAll('input,select')) if (!control.labels.length) found.push(`no label: ${control.name}`);
  for (const link of document.querySelectorAll('a,button')) if (!link.textContent.trim()) found.push(`no name: ${link.outerHTML}`);
  for (const image of document.querySelectorAll('img')) if (!image.hasAttribute('alt')) found.push(`no alt: ${image.src}`);
  const ids = [...document.querySelectorAll('[id]')].map(element => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`two elements are #${id}`);
  for (const named of document.querySelectorAll('[aria-labelledby]'))
    if (!document.getElementById(named.getAttribute('aria-labelledby'))) found.push(`nothing is #${named.getAttribute('aria-labelledby')}`);
  for (const scope of document.querySelectorAll('th:not([scope])')) found.push(`no scope: ${scope.textContent}`);
  return found;
})()"""


class Browser:
    """Chromium's own protocol over a pair of pipes: one JSON object after another, zero bytes between."""

    def __init__(self, chromium, profile):
        # High numbers, so that the child can move its ends to 3 and 4 without treading on another.
        (to_read, self.write), (self.read, from_write) = [
            [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in os.pipe()] for _ in range(2)]

        def place():
            os.dup2(to_read, 3)
            os.dup2(from_write, 4)

        self.process = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}",
             "about:blank"],
            preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        os.set_blocking(self.read, False)
        self.waiting = b""
        self.number = 0
        self.events = []
        self.session = None

    def message(self, until):
        while b"\0" not in self.waiting:
            if time.monotonic() > until:
                raise TimeoutError("the browser says nothing")
            try:
                more = os.read(self.read, 1 << 20)
                if not more:
                    raise EOFError("the browser has ended")
                self.waiting += more
            except BlockingIOError:
                time.sleep(0.002)
        one, self.waiting = self.waiting.split(b"\0", 1)
        return json.loads(one)

    def ask(self, method, **parameters):
        self.number += 1
        asked = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.write, json.dumps(asked).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.message(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method):
        until = time.monotonic() + PATIENCE
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.message(until))

    def open_page(self, scripts=False):
        """Opens a tab. Unless `scripts`, the page's own are off; what is asked about it is asked by the browser itself."""
        self.scripts = scripts
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)

    def evaluate(self, script):
        # Switched on for the question alone, after the page has loaded.
        self.ask("Emulation.setScriptExecutionDisabled", value=False)
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        self.ask("Emulation.setScriptExecutionDisabled", value=not self.scripts)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def end(self):
        try:
            self.session = None
            self.ask("Browser.close")
        except Exception:
            self.process.kill()
        self.process.wait()
