"""Opens a page in headless Chromium and says in JSON what a person would meet there.

usage: browse.py URL WIDTH light|dark [SCREENSHOT.png [HEIGHT]]

Speaks the DevTools protocol over a pipe. Its expressions are evaluated by the debugger, which a policy against scripts does not
stop, so that the page can be measured as it is.
"""
import base64
import json
import os
import subprocess
import sys
import tempfile

url, width, scheme = sys.argv[1], int(sys.argv[2]), sys.argv[3]
screenshot = sys.argv[4] if len(sys.argv) > 4 else None
height = int(sys.argv[5]) if len(sys.argv) > 5 else 844

MEASURE = r"""
(() => {
    const all = [...document.querySelectorAll('body *')];
    const seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
    const named = e => e.getAttribute('aria-label') || e.getAttribute('aria-hidden') === 'true';
    return {
        title: document.title,
        scroll_width: document.documentElement.scrollWidth,
        beyond: all.filter(e => seen(e) && !e.closest('.unseen, thead') && e.getBoundingClientRect().right > innerWidth + 0.5)
            .map(e => e.tagName + '.' + e.getAttribute('class')),
        scripts: document.scripts.length,
        handlers: all.filter(e => [...e.attributes].some(a => a.name.startsWith('on'))).length,
        images: document.images.length,
        links: [...document.querySelectorAll('a[href]')].map(a => a.href),
        text: document.body.innerText,
        background: getComputedStyle(document.body).backgroundColor,
        landmarks: ['header', 'main', 'footer'].filter(n => document.querySelectorAll('body > ' + n).length === 1),
        headings: [...document.querySelectorAll('h1, h2')].map(h => h.tagName + ' ' + h.textContent),
        tables_without_caption: [...document.querySelectorAll('table')].filter(t => !t.caption).length,
        headers_without_scope: [...document.querySelectorAll('th')].filter(t => !t.scope).length,
        pictures_without_name: [...document.querySelectorAll('svg')].filter(s => !named(s)).length,
        focusable: document.querySelectorAll('[tabindex="0"], a[href]').length,
    };
})()
"""
FOCUS = r"""
(() => { const e = document.activeElement; const s = getComputedStyle(e);
    return {text: e.textContent, outlined: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2}; })()
"""


class Browser:
    def __init__(self, profile):
        to_browser, self.to_browser = os.pipe()
        self.from_browser, from_browser = os.pipe()

        def wire():
            # Chromium reads orders from 3 and writes answers to 4. Higher numbers first: one may be in the other's place.
            high_in, high_out = os.dup(to_browser), os.dup(from_browser)
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile})
        os.close(to_browser)
        os.close(from_browser)
        self.last, self.rest, self.events, self.session = 0, b"", [], None

    def read(self):
        while b"\0" not in self.rest:
            more = os.read(self.from_browser, 1 << 20)
            if not more:
                raise SystemExit("chromium ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def order(self, method, **parameters):
        self.last += 1
        order = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            order["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(order).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.last:
                if "error" in message:
                    raise SystemExit(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def await_event(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.read())

    def evaluate(self, expression):
        return self.order("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")


def complaint(event):
    """What a person would find in the console, or be asked in a dialogue."""
    method, parameters = event.get("method"), event.get("params", {})
    if method == "Log.entryAdded":
        return parameters["entry"]["text"]
    if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
        return json.dumps(parameters)[:500]


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    browser = Browser(profile)
    try:
        target = browser.order("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.order("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            browser.order(f"{domain}.enable")
        mobile = width < 600
        browser.order("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=mobile)
        browser.order("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.order("Page.navigate", url=url)
        browser.await_event("Page.loadEventFired")
        report = browser.evaluate(MEASURE)
        for kind in ("keyDown", "keyUp"):
            browser.order("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        report["focus"] = browser.evaluate(FOCUS)
        browser.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        if screenshot:
            shot = browser.order("Page.captureScreenshot", format="png")
            with open(screenshot, "wb") as file:
                file.write(base64.b64decode(shot["data"]))
        report["complaints"] = [text for text in map(complaint, browser.events) if text]
        report["requests"] = [event["params"]["request"]["url"] for event in browser.events
                              if event.get("method") == "Network.requestWillBeSent"]
        report["status"] = [event["params"]["response"]["status"] for event in browser.events
                            if event.get("method") == "Network.responseReceived"]
        print(json.dumps(report))
    finally:
        browser.process.kill()
        browser.process.wait()
