"""Measures page load times of the dashboard: ESPALIER=build/bin/espalier python3 page_load_times.py DIR [TIMES]. DIR contains a run, for example one of large_run.py."""
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dashboard import Server, browser, eventually

# Polls the page for drawn elements, with the page's clock, which begins at navigation.
WATCH = """
const [done] = arguments, seen = {};
const look = () => {
  const now = performance.now() / 1000;
  if (!seen.curves && document.querySelectorAll('svg polyline.curve').length >= 7 && document.querySelector('.matrix canvas')?.height > 200) seen.curves = now;
  if (!seen.timeline && document.querySelector('.timeline p.quiet')?.textContent) seen.timeline = now;
  seen.curves && seen.timeline ? done(seen) : setTimeout(look, 10);
};
look();"""


def main(folder, times=3):
    chrome = browser()
    try:
        for _ in range(times):
            with Server(folder) as server:  # a new server with empty caches
                begun = time.monotonic()
                server.api("runs")
                listed = time.monotonic() - begun
                chrome.get("about:blank")
                chrome.set_script_timeout(60)
                chrome.get(server.url)
                eventually(lambda: chrome.execute_script("return document.readyState") == "complete", "the page")
                seen = chrome.execute_async_script(WATCH)
                print(f"list of runs {listed:.3f} s; curves, memory and communication drawn {seen['curves']:.2f} s, the timeline {seen['timeline']:.2f} s")
    finally:
        chrome.quit()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
