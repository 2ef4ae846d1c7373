"""The status page in headless Chromium, as somebody at a keyboard or with a phone uses it."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from webdriver import ENTER, ESCAPE, TAB, Browser

BINARY = os.environ["NIBBLE_BINARY"]
MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "tiny-v4"
IDLE = "return document.querySelector('#log').getAttribute('aria-busy') !== 'true'"


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([BINARY, "serve", str(MODEL), "--port", "0", "--temperature", "0", *flags],
                                        stderr=subprocess.PIPE, text=True)
        self.url = None
        for line in self.process.stderr:
            if match := re.search(r"listening on (\S+)", line):
                self.url = f"http://{match.group(1)}/"
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def wait_until_ready(self, browser):
        """The port is open before the model is there."""
        browser.wait("ready", lambda: self.answers("health/ready"))

    def answers(self, path):
        try:
            with urllib.request.urlopen(self.url + path) as response:
                return response.status == 200
        except urllib.error.HTTPError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stderr.close()


def setUpModule():
    if shutil.which("chromedriver") is None:
        if os.environ.get("NIBBLE_E2E_REQUIRED"):
            raise RuntimeError("chromedriver is not installed: apt-get install chromium chromium-driver")
        raise unittest.SkipTest("chromedriver is not installed: apt-get install chromium chromium-driver")


class PageCase(unittest.TestCase):
    flags = []

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags)
        cls.addClassCleanup(cls.server.stop)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)
        cls.server.wait_until_ready(cls.browser)

    def setUp(self):
        self.browser.open(self.server.url)
        self.browser.run("sessionStorage.clear()")
        self.browser.open(self.server.url)
        self.browser.log()

    def messages(self, kind):
        return self.browser.run("return [...document.querySelectorAll('.message.' + arguments[0])]"
                                ".map(message => message.textContent)", kind)

    def wait_for_answers(self, count):
        self.browser.wait(f"{count} answers", lambda: self.browser.run(
            "return document.querySelectorAll('.message .facts, .message .fault').length === arguments[0]", count)
            and self.browser.run(IDLE))

    def ask(self, text):
        count = len(self.messages("assistant")) + 1
        self.browser.type("#message", text + ENTER)
        self.wait_for_answers(count)
        return self.messages("assistant")[-1]


class Status(PageCase):
    def test_shows_model_kernels_and_load(self):
        browser = self.browser
        browser.wait("the state", lambda: browser.text("#state") == "Ready")
        self.assertEqual(browser.text("#model"), "tiny-v4")
        self.assertEqual(browser.run("return document.title"), "tiny-v4 - Nibble")
        self.assertRegex(browser.text("#facts"), r"Nibble \S+, up \d+ s, 16,384 tokens of context")
        self.assertIn("matmul", browser.text("#kernels"))
        self.assertIn("Why: ", browser.text("#kernels"))
        self.assertRegex(browser.text("#kv-pages"), r"^\d+ of \d+ pages, \d+ cached$")

    def test_requests_of_others_show_up_as_numbers_only(self):
        body = {"messages": [{"role": "user", "content": "xylophone"}], "max_tokens": 9, "ignore_eos": True}
        request = urllib.request.Request(self.server.url + "v1/chat/completions", json.dumps(body).encode())
        urllib.request.urlopen(request).read()
        rows = "return [...document.querySelectorAll('#recent tr')].map(row => row.cells[3].textContent)"
        self.browser.wait("the request", lambda: "9" in self.browser.run(rows))
        self.assertNotIn("xylophone", self.browser.run("return document.documentElement.outerHTML"))

    def test_rates_move_with_the_load(self):
        browser = self.browser
        browser.wait("the state", lambda: browser.text("#state") == "Ready")
        browser.run("const seen = window.rates = []; const rate = document.querySelector('#output-rate');"
                    "new MutationObserver(() => seen.push(rate.textContent)).observe(rate, {childList: true})")
        self.ask("What is the capital of France?")
        browser.wait("a rate", lambda: browser.run("return window.rates.some(text => parseFloat(text) > 0)"))
        self.assertTrue(browser.run("return document.querySelector('#output-spark polyline').getAttribute('points')"))

    def test_nothing_is_refused_or_fails(self):
        self.browser.wait("the state", lambda: self.browser.text("#state") == "Ready")
        self.assertEqual(self.browser.log(), [])

    def test_text_cannot_become_markup(self):
        """The browser itself refuses, whatever the scripts do."""
        refused = self.browser.run("try { document.body.innerHTML = '<b>x</b>'; return '' }"
                                   "catch (fault) { return fault.name }")
        self.assertEqual(refused, "TypeError")
        self.browser.run("const script = document.createElement('script'); window.ran = false;"
                         "try { script.textContent = 'window.ran = true'; document.body.append(script) } catch {}")
        self.assertFalse(self.browser.run("return window.ran"))

    def test_a_phone_needs_no_sideways_scrolling(self):
        browser = Browser()
        self.addCleanup(browser.close)
        browser.phone(360, 740)
        browser.open(self.server.url)
        browser.wait("the state", lambda: browser.text("#state") == "Ready")
        self.assertLessEqual(browser.run("return document.documentElement.scrollWidth"), 360)
        small = browser.run("return [...document.querySelectorAll('button')].filter(button => button.offsetParent)"
                            ".map(button => button.getBoundingClientRect().height).filter(height => height < 44)")
        self.assertEqual(small, [])

    def test_everything_that_can_be_operated_has_a_name(self):
        nameless = self.browser.run(
            "return [...document.querySelectorAll('button, input, textarea, meter, [tabindex], summary')]"
            ".filter(element => !(element.textContent.trim() || element.labels?.length || element.ariaLabel"
            " || element.getAttribute('aria-labelledby'))).map(element => element.outerHTML)")
        self.assertEqual(nameless, [])


class Chat(PageCase):
    def test_streams_an_answer(self):
        self.assertIn("Paris", self.ask("What is the capital of France?"))
        self.assertRegex(self.browser.text(".message .facts"), r"^\d+ tokens, first after .+ tokens/s$")
        self.assertRegex(self.browser.text("#chat-status"), "^Answer complete: ")

    def test_keeps_the_conversation(self):
        self.ask("What is the capital of France?")
        self.ask("What is 47 + 38?")
        self.assertEqual(len(self.messages("user")), 2)
        self.browser.click("#new-chat")
        self.assertEqual(self.messages("user"), [])

    def test_shows_thinking_apart(self):
        self.browser.click("#thinking")
        self.ask("What is 47 + 38?")
        thought = self.browser.text(".thought .text")
        self.assertTrue(thought)
        self.assertNotIn(thought, self.browser.text(".message.assistant > .text"))
        self.assertIn("85", self.browser.text(".message.assistant > .text"))

    def test_shows_a_tool_call_and_goes_on_with_its_result(self):
        self.browser.run("document.querySelector('.settings').open = true")
        self.browser.click("#example-tool")
        self.ask("What is the weather in Rome?")
        self.assertIn("Calls get_weather", self.browser.text(".call"))
        self.assertEqual(json.loads(self.browser.text(".call pre")), {"city": "Rome"})
        self.browser.type(".call .result", '{"temperature": 21}' + ENTER)
        self.wait_for_answers(2)
        self.assertEqual(len(self.messages("assistant")), 2)
        self.assertIsNone(self.browser.text(".fault"))

    def test_markup_is_shown_as_it_is(self):
        text = "<img src=x onerror=alert(1)><b>bold</b>"
        self.ask(text)
        self.assertIn(text, self.messages("user")[0])
        self.assertEqual(self.browser.run("return document.querySelectorAll('#log img, #log b').length"), 0)

    def test_wrong_settings_are_explained(self):
        self.browser.run("document.querySelector('.settings').open = true")
        self.browser.type("#tools", "[{]")
        self.ask("Hello")
        self.assertIn("JSON", self.browser.text(".fault"))
        self.browser.run("document.querySelector('#tools').value = ''")
        self.browser.type("#temperature", "9")
        self.ask("Hello")
        self.assertIn("temperature: expected a number from 0 to 2", self.messages("assistant")[-1])

    def test_works_by_keyboard_alone(self):
        browser = self.browser
        browser.press(TAB, ENTER)  # "Skip to the chat"
        browser.press(*"Hello", TAB, " ", TAB, ENTER)  # thinking on, Send
        self.wait_for_answers(1)
        self.assertTrue(browser.run("return document.querySelector('#thinking').checked"))

    def test_escape_stops_an_answer(self):
        # The limit is far away and the page sees every piece, so that it can be stopped in between.
        self.browser.run("const plain = fetch; window.fetch = (path, options = {}) => plain(path, options.body ? "
                         "{...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true,"
                         " max_tokens: 15000})} : options)")
        self.browser.type("#message", "Tell me a story" + ENTER)
        self.browser.wait("some text", lambda: self.browser.text(".message.assistant > .text"))
        self.browser.press(ESCAPE)
        self.wait_for_answers(1)
        self.assertIn("Stopped", self.messages("assistant")[0])
        outcomes = "return [...document.querySelectorAll('#recent tr')].map(row => row.cells[1].textContent)"
        self.browser.wait("the end of the request", lambda: "disconnect" in self.browser.run(outcomes))


class Keys(PageCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "keys"
        path.write_text("open-sesame\n")
        path.chmod(0o600)
        cls.flags = ["--api-key-file", str(path)]
        super().setUpClass()

    def test_asks_for_the_key_until_it_is_right(self):
        browser = self.browser
        visible = "return !document.querySelector('#key-form').hidden"
        browser.wait("the form", lambda: browser.run(visible))
        self.assertEqual(browser.text("#state"), "Key needed")
        browser.type("#key", "wrong" + ENTER)
        browser.wait("the refusal", lambda: "wrong API key" in browser.text("#key-note"))
        browser.type("#key", "open-sesame" + ENTER)
        browser.wait("the state", lambda: browser.text("#state") == "Ready")
        self.assertFalse(browser.run(visible))
        self.assertIn("Paris", self.ask("What is the capital of France?"))
        self.assertNotIn("open-sesame", browser.run("return document.documentElement.outerHTML"))
        self.assertEqual(browser.run("return localStorage.length + document.cookie.length"), 0)


if __name__ == "__main__":
    unittest.main()
