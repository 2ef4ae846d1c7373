"""A headless Chromium, driven over the WebDriver protocol (W3C) with the standard library alone."""
import base64
import json
import re
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference
ENTER, ESCAPE, TAB, SHIFT = "\ue007", "\ue00c", "\ue004", "\ue008"
PATIENCE_SECONDS = 120


class WebDriverError(Exception):
    pass


class Browser:
    def __init__(self, width=1280, height=900, dark=False):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        port = None
        for line in self.driver.stdout:
            if match := re.search(r"started successfully on port (\d+)", line):
                port = int(match.group(1))
                break
        self.base = f"http://127.0.0.1:{port}"
        # No sandbox: CI runs as root, and the only page is our own.
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en",
                     "--disable-background-networking", f"--window-size={width},{height}"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        capabilities = {"alwaysMatch": {"goog:chromeOptions": {"args": arguments},
                                        "goog:loggingPrefs": {"browser": "ALL"}}}
        answer = self.call("POST", "/session", {"capabilities": capabilities})
        self.base += "/session/" + answer["sessionId"]

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise WebDriverError(error.read().decode()) from None

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def phone(self, width=390, height=844):
        """The viewport of a phone, which a window cannot be made as narrow as."""
        self.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 2, "mobile": True}})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys):
        """Keys for whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", selector)

    def wait(self, what, condition):
        """Until `condition` holds; its value."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (value := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"still not so: {what}")
            time.sleep(0.02)
        return value

    def log(self):
        """Messages of the console since the last call: script errors, refused resources."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))
