"""Shared code of dashboard tests: a small run on two ranks, a server, a browser."""
import http.client
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ESPALIER = os.environ.get("ESPALIER", "build/bin/espalier")
RUN_FILE = """
[run]
name = "small"
seed = 1
[model]
arch = "gpt"
layers = 2
heads = 2
dim = 32
seq_len = 32
[data]
train = ["{text}"]
tokenizer = "byte"
val_fraction = 0.1
[train]
steps = 12
global_batch = 8
micro_batch = 1
lr = 1e-3
[parallel]
pp = 2
[log]
every = 1
trace = true
"""


def train_arguments(folder, run, *more):
    """Arguments of a run of two ranks in a pipeline, in DIR/run."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("An espalier is a tree trained along a frame. " * 400)
    run_file = folder / "run_file.toml"
    run_file.write_text(RUN_FILE.format(text=text))
    return [ESPALIER, "train", str(run_file), "--nproc", "2", "--run-dir", str(folder / "runs" / run), "--resume", "none", *more]


def train(folder, run, *more):
    subprocess.run(train_arguments(folder, run, *more), check=True, timeout=120, capture_output=True)


class Server:
    """Runs `espalier dash` on a folder while the context is open."""

    def __init__(self, folder):
        self.process = subprocess.Popen([ESPALIER, "dash", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.split(":")[2].split("/")[0])
        self.token = self.url.split("/")[3]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.code = self.process.wait(timeout=30)
        self.process.stdout.close()

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in given)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    def api(self, what):
        answer, body = self.ask(f"/{self.token}/api/{what}")
        assert answer.status == 200, (what, answer.status, body[:200])
        return json.loads(body)


def browser(width=1300, height=900, rules=None):
    """Headless Chromium; skips the test with the reason if it is missing."""
    if importlib.util.find_spec("selenium") is None:
        sys.path.append("/usr/lib/python3/dist-packages")  # Debian's packages, for a Python that is not Debian's
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        raise unittest.SkipTest("python3-selenium is not installed: apt-get install chromium chromium-driver python3-selenium")
    driver, chromium = pathlib.Path("/usr/bin/chromedriver"), pathlib.Path("/usr/bin/chromium")
    if not driver.exists() or not chromium.exists():
        raise unittest.SkipTest("no Chromium: apt-get install chromium chromium-driver python3-selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}"]
    if rules:
        arguments.append(f"--host-resolver-rules={rules}")
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(service=Service(str(driver)), options=options)
    made.set_page_load_timeout(30)
    return made


def eventually(check, what, seconds=30):
    """Waits until the condition holds; a generous deadline ends the test if it never does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            found = check()
        except Exception as error:  # the page replaces elements while it updates
            found, what = None, f"{what} ({error.__class__.__name__})"
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"timed out after {seconds} s waiting for: {what}")


def temporary():
    return tempfile.TemporaryDirectory(prefix="espalier-dash-")
