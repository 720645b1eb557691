"""espalier dash and espalier report, as a user and as a stranger meet them."""
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import dashboard
from dashboard import ESPALIER, Server, browser, eventually, temporary, train, train_arguments

EVIL = "<img src=x onerror=window.pwned=1>"


class WithRun(unittest.TestCase):
    """One real run of two ranks, a pipeline, for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = temporary()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        train(cls.folder, "small")
        cls.runs = cls.folder / "runs"


class Http(WithRun):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = cls.enterClassContext(Server(cls.runs)) if hasattr(cls, "enterClassContext") else Server(cls.runs).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_answers_what_the_page_asks(self):
        self.assertEqual([run["name"] for run in self.server.api("runs")["runs"]], ["small"])
        loss = self.server.api("series?run=small&keys=loss")["keys"]["loss"]
        logged = [json.loads(line) for line in (self.runs / "small/metrics.jsonl").read_text().splitlines()]
        self.assertEqual(loss["x"], [line["step"] for line in logged])
        for shown, line in zip(loss["mean"], logged):
            self.assertAlmostEqual(shown, line["loss"], delta=1e-5)
        detail = self.server.api("run?run=small")
        self.assertEqual(len(detail["ranks"]), 2)
        planned = [stage["allocated"] for stage in detail["plan"]["stages"]]
        for rank, plan in zip(detail["ranks"], planned):
            self.assertLess(abs(rank["peak_bytes"] / plan - 1), 0.05, "the plan is of this run")
        sent = detail["traffic"]["tiers"][0]["bytes"]
        counted = sum(row["bytes_sent"] for k in range(2) for row in json.loads((self.runs / f"small/ranks/rank-{k}.json").read_text())["comm"])
        self.assertAlmostEqual(sum(sum(tier["bytes"]) for tier in detail["traffic"]["tiers"]), counted, delta=1)
        self.assertEqual(sent[0], 0, "nobody sends to itself")
        trace = self.server.api("timeline?run=small&buckets=4000")
        self.assertEqual(len(trace["ranks"]), 2)
        self.assertEqual(len(trace["steps"]), 12)
        self.assertTrue(any(re.fullmatch(r"F\d+", name) for name in trace["names"]), "actions of the pipeline by name")
        self.assertGreater(trace["steps"][5][2], 0, "two stages cannot both be busy all the time")

    def test_strangers_are_refused(self):
        token, port = self.server.token, self.server.port
        page = f"/{token}/"
        for path, headers, status in ((page, {}, 200), ("/", {}, 403), ("/wrong/", {}, 403), (page, {"Host": "evil.example"}, 421),
                                      (page, {"Host": f"evil.example:{port}"}, 421), (page, {"Host": f"localhost:{port}"}, 200),
                                      (page + "api/runs", {"Origin": "http://evil.example"}, 403), (page + "api/runs", {"Origin": "null"}, 403),
                                      (page + "api/runs", {"Origin": f"http://127.0.0.1:{port}"}, 200),
                                      (page + "api/runs", {"Sec_Fetch_Site": "cross-site"}, 403), (page, {"Sec_Fetch_Site": "none"}, 200)):
            answer, body = self.server.ask(path, **headers)
            self.assertEqual(answer.status, status, (path, headers))
            self.assertIsNone(answer.getheader("Access-Control-Allow-Origin"))
            if status != 200:
                self.assertNotIn(token.encode(), body)
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            self.assertEqual(self.server.ask(page, method)[0].status, 405)

    def test_only_the_loopback_listens(self):
        listening = pathlib.Path("/proc/net/tcp").read_text() + pathlib.Path("/proc/net/tcp6").read_text()
        lines = [line.split() for line in listening.splitlines() if f":{self.server.port:04X}" in line.split()[1] and line.split()[3] == "0A"]
        self.assertEqual([line[1].split(":")[0] for line in lines], ["0100007F"])

    def test_nothing_outside_of_the_folder(self):
        for run in ("..", "%2e%2e", "/etc", "small/../..", "small%00"):
            self.assertIn(self.server.ask(f"/{self.server.token}/api/run?run={run}")[0].status, (400, 404))
        for what in ("plan/search?model=/etc/passwd&cluster=selene", "plan/search?model=gpt2-124m&cluster=../x.toml"):
            self.assertEqual(self.server.ask(f"/{self.server.token}/api/{what}")[0].status, 404)

    def test_plans(self):
        found = self.server.api("plan/search?model=gpt2-1558m&cluster=dgx-a100&gpus=8&batch=64")
        self.assertEqual(found["gpus"], 8)
        self.assertGreater(len(found["points"]), 10)
        self.assertTrue(all(one["memory_bytes"] <= found["capacity"] for one in found["points"]))
        self.assertEqual(found["top"][0]["step_s"], min(one["step_s"] for one in found["points"] + found["top"]))
        self.assertTrue(found["explain"]["time"])
        self.assertIn("needs", self.server.api("plan/search?model=gpt3-175b&cluster=one-h200&gpus=1&batch=8")["error"])

    def test_ends_when_asked(self):
        with Server(self.runs) as server:
            pass
        self.assertEqual(server.code, 0)


class Report(WithRun):
    def test_is_one_file_that_needs_nobody(self):
        path = subprocess.run([ESPALIER, "report", str(self.runs / "small")], check=True, capture_output=True, text=True, timeout=60).stdout.strip()
        self.assertEqual(path, str(self.runs / "small/report.html"))
        page = pathlib.Path(path).read_text()
        self.assertNotRegex(page, r"""(src|href)=["'](https?:)?//""")
        self.assertIn("default-src 'none'", page)
        data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
        self.assertEqual(len(data["runs"][0]["series"]["keys"]["loss"]["x"]), 12)
        self.assertEqual(len(data["runs"][0]["timeline"]["ranks"]), 2)

    def test_names_stay_names(self):
        evil = self.runs / EVIL
        shutil.copytree(self.runs / "small", evil)
        with open(evil / "run.toml", "a") as file:
            file.write("# </script><script>window.pwned = 1</script>\n")
        out = self.folder / "evil.html"
        subprocess.run([ESPALIER, "report", str(evil), "--out", str(out)], check=True, capture_output=True, timeout=60)
        page = out.read_text()
        self.assertEqual(page.count("<script"), 2)  # the data and the page's own
        self.assertNotIn("<img src=x", page)

    def test_no_run_folder(self):
        done = subprocess.run([ESPALIER, "report", "/tmp"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 4)
        self.assertIn("no run folder", done.stderr)


class Page(WithRun):
    """In headless Chromium."""

    @classmethod
    def setUpClass(cls):
        cls.chrome = browser(rules="MAP evil.example 127.0.0.1")
        cls.addClassCleanup(cls.chrome.quit)
        super().setUpClass()
        shutil.copytree(cls.runs / "small", cls.runs / EVIL)
        cls.server = Server(cls.runs)
        cls.addClassCleanup(cls.server.__exit__)

    def open(self, where=""):
        self.chrome.get("about:blank")
        self.chrome.get(self.server.url + where)

    def js(self, code, *arguments):
        return self.chrome.execute_script(code, *arguments)

    def quiet(self):
        """Nothing was blocked and nothing threw."""
        self.assertEqual([entry["message"] for entry in self.chrome.get_log("browser") if entry["level"] == "SEVERE"], [])

    def test_a_shows_the_run(self):
        self.open()
        eventually(lambda: self.js("return document.querySelectorAll('svg polyline.curve').length") >= 7, "curves")
        eventually(lambda: "step 12 took" in self.js("return document.querySelector('.timeline').innerText") or
                   self.js("return document.querySelector('.timeline canvas').height") > 40, "the timeline")
        text = self.js("return document.body.innerText")
        for wanted in ("Loss", "MFU", "Memory of each rank", "Communication", "Restarts and faults", "bubble", "rank 1"):
            self.assertIn(wanted, text)
        self.quiet()
        # A script in a name is text.
        self.assertIn(EVIL, text)
        self.assertIsNone(self.js("return window.pwned || null"))
        self.assertEqual(self.js("return document.querySelectorAll('img').length"), 0)

    def test_b_timeline_zooms_and_tells(self):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys
        if self.chrome.current_url != self.server.url:  # as the test before left it
            self.open()
        width = "return parseFloat(document.querySelector('.strip i').style.width)"
        before = eventually(lambda: self.js(width), "the strip")
        canvas = self.chrome.find_element("css selector", ".timeline canvas")
        self.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
        places = itertools.cycle(range(-300, 400, 30))  # a rank may stand idle where one looks first

        def tip_somewhere():
            ActionChains(self.chrome, duration=20).move_to_element_with_offset(canvas, next(places), -int(canvas.size["height"] / 2) + 30).perform()
            return self.js("const t = document.querySelector('.tip.on'); return t && t.textContent")

        tip = eventually(tip_somewhere, "a tip")
        self.assertRegex(tip, r"rank [01], ")
        canvas.send_keys("+")
        self.assertLess(self.js(width), before)
        canvas.send_keys("0")
        self.assertEqual(self.js(width), 100)
        canvas.send_keys("n")
        self.assertLess(self.js(width), 50)
        said = self.js("return document.getElementById('said').textContent")
        self.assertRegex(said, r"step \d+ took .*bubble")
        # Curves: drag to zoom, Escape to see all.
        chart = self.chrome.find_element("css selector", ".chart svg")
        self.js("arguments[0].scrollIntoView({block: 'center'})", chart)
        ActionChains(self.chrome).move_to_element_with_offset(chart, -50, 0).click_and_hold().move_by_offset(150, 0).release().perform()
        shown = "return [...document.querySelectorAll('button')].some((b) => b.textContent === 'All steps' && !b.hidden)"
        eventually(lambda: self.js(shown), "a zoomed chart")
        chart.send_keys(Keys.ESCAPE)
        eventually(lambda: not self.js(shown), "all steps again")
        self.quiet()

    def test_c_lives(self):
        live = subprocess.Popen(train_arguments(self.folder, "live", "--set", "train.steps=1000000"),
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: (self.runs / "live/metrics.jsonl").exists(), "the first step")
            self.open()
            step = "const t = document.querySelector('.tile dd'); return t ? parseInt(t.firstChild.textContent.replace(/,/g, '')) : 0"
            eventually(lambda: self.js("return document.title").startswith("● live"), "a run under way")
            first = eventually(lambda: self.js(step), "a step")
            eventually(lambda: self.js(step) > first, "a later step, without loading again")
            points = "return document.querySelector('svg polyline.curve').getAttribute('points').length"
            self.assertGreater(self.js(points), 5)
            sent = "return document.querySelector('.matrix p.quiet').textContent"
            sent_first = eventually(lambda: "in all" in self.js(sent) and self.js(sent), "the map of bytes, while the run goes on")
            words = "return document.querySelector('.timeline p.quiet').textContent"
            seen = eventually(lambda: "bubble" in self.js(words) and self.js(words), "the timeline, while the run goes on")
            self.assertFalse((self.runs / "live/trace.json").exists())
            eventually(lambda: self.js(words) != seen, "a longer timeline, without loading again")
            eventually(lambda: self.js(sent) != sent_first, "more bytes sent, without loading again")
            self.assertFalse((self.runs / "live/summary.json").exists())
        finally:
            live.terminate()
            live.wait(timeout=60)
        self.quiet()

    def test_d_plans(self):
        self.open("#planner")
        words = "const p = document.querySelector('#main b'); return p ? p.textContent : ''"
        first = eventually(lambda: self.js(words), "a plan")
        field = self.chrome.find_element("css selector", "input[name=gpus]")
        field.clear()
        field.send_keys("256\n")
        second = eventually(lambda: self.js(words) != first and self.js(words), "another plan")
        self.assertIn("dp", second)
        self.assertGreater(self.js("return document.querySelectorAll('.scatter circle').length"), 50)
        chosen = "return document.querySelector('button[aria-pressed=true]')?.textContent"
        before = self.js(chosen)
        self.js("document.querySelectorAll('td button')[3].click()")
        self.assertNotEqual(self.js(chosen), before)
        self.assertEqual(self.js("return document.querySelectorAll('.scatter .chosen').length"), 1)
        self.quiet()

    def test_e_fits_phones_and_the_night(self):
        views = [(360, "dark", ("", "#planner")), (1300, "light", ("",))]
        for width, scheme, pages in views if os.environ.get("ESPALIER_TEST_LONG") else views[:1]:
            self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600})
            self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            for where in pages:
                self.open(where)
                eventually(lambda: self.js("return document.querySelectorAll('.card').length") > 2, "cards")
                eventually(lambda: self.js("return document.querySelectorAll('svg circle, svg polyline').length"), "pictures")
                self.assertLessEqual(self.js("return document.documentElement.scrollWidth - innerWidth"), 0, (width, where))
            background = self.js("return getComputedStyle(document.body).backgroundColor")
            self.assertEqual(sum(map(int, re.findall(r"\d+", background)[:3])) < 200, scheme == "dark")
        # Every control has a name for those who hear it.
        nameless = """return [...document.querySelectorAll('button, select, input, canvas, svg[role=img]')].filter((e) =>
            !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML.slice(0, 80))"""
        self.assertEqual(self.js(nameless), [])
        self.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_f_other_sites_are_refused(self):
        port, token = self.server.port, self.server.token
        self.chrome.get(f"http://evil.example:{port}/{token}/")  # a name that was made to mean this machine
        self.assertIn("answers to 127.0.0.1", self.js("return document.body.innerText"))
        other = subprocess.Popen([sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(self.folder)],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            theirs = re.search(r"port (\d+)", other.stdout.readline())[1]
            self.chrome.get(f"http://localhost:{theirs}/")
            outcome = self.chrome.execute_async_script("""
                const [url, done] = arguments, script = document.createElement('script');
                const tried = new Promise((r) => { script.onload = () => r('ran'); script.onerror = () => r('refused'); });
                script.src = url + 'app.js';
                document.head.append(script);
                Promise.all([tried, fetch(url + 'api/runs').then((r) => r.status, () => 'refused')]).then(done);""", self.server.url)
            self.assertEqual(outcome, ["refused", "refused"])
        finally:
            other.terminate()
            other.wait(timeout=30)
            other.stdout.close()
        self.chrome.get_log("browser")

    def test_g_a_report_opens_from_a_file(self):
        out = self.folder / "report.html"
        subprocess.run([ESPALIER, "report", str(self.runs / "small"), str(self.runs / EVIL), "--out", str(out)], check=True, capture_output=True, timeout=60)
        self.chrome.get(out.as_uri())
        eventually(lambda: self.js("return document.querySelectorAll('svg polyline.curve').length") >= 7, "curves")
        eventually(lambda: "bubble" in self.js("return document.body.innerText"), "the timeline's words")
        self.assertIsNone(self.js("return window.pwned || null"))
        self.quiet()

    def test_h_a_run_without_a_trace_leaves_no_gap(self):
        apart = self.folder / "untraced"
        shutil.copytree(self.runs / "small", apart / "plain")
        (apart / "plain" / "trace.json").unlink()
        with Server(apart) as server:
            self.chrome.get(server.url)
            eventually(lambda: "no trace yet" in self.js("return document.querySelector('.timeline').innerText"), "what is missing")
            for part in (".timeline canvas", ".timeline .strip"):
                self.assertEqual(self.js("return document.querySelector(arguments[0]).clientHeight", part), 0, part)


if __name__ == "__main__":
    unittest.main()
