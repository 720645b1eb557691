#include "apps/espalier/lab_page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_findings.h"
#include "apps/espalier/lab_svg.h"
#include "esp/base/json.h"

namespace esp::app {
namespace {

constexpr const char* kStyle = R"(
:root{--ink:#1d2329;--soft:#5b6672;--page:#fbfaf7;--card:#fff;--line:#e3dfd6;--leaf:#2a7d4f;--bad:#b3261e;--code:#f3f1ec}
@media(prefers-color-scheme:dark){:root{--ink:#e4e2dc;--soft:#a09d95;--page:#121512;--card:#1a1e1b;--line:#2e342f;
--leaf:#7cc79a;--bad:#ff8a80;--code:#202521}}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",sans-serif}
a{color:var(--leaf)}
a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:3px solid var(--leaf);outline-offset:2px}
.skip{position:absolute;left:-999px}.skip:focus{left:1em;top:1em;background:var(--card);padding:.5em 1em}
header,main,footer{max-width:60rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:3rem}
h1{font-size:clamp(1.8rem,5vw,2.8rem);line-height:1.15;margin:0 0 .5rem;letter-spacing:-.02em}
h2{font-size:1.5rem;margin:3.5rem 0 1rem;border-bottom:2px solid var(--leaf);padding-bottom:.25rem}
h3{font-size:1.2rem;margin:0}
.lead,.look{color:var(--soft)}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem .5rem;list-style:none;padding:0}
nav a{display:inline-block;padding:.1rem .6rem;border:1px solid var(--line);border-radius:1rem;background:var(--card);
text-decoration:none;font-size:.9rem}
article{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:1.25rem;margin:0 0 1.5rem}
.top{display:flex;flex-wrap:wrap;justify-content:space-between;gap:.5rem;align-items:baseline}
.tag{font-size:.85rem;color:var(--soft);white-space:nowrap}
.bad{color:var(--bad);font-weight:600}.good{color:var(--leaf)}
.wide{overflow-x:auto;margin:1rem 0}
.wide svg{display:block;min-width:40rem;max-width:100%;height:auto;border-radius:.4rem}
.wide svg .bg{fill:transparent}
table{border-collapse:collapse;font-size:.9rem;min-width:100%}
th,td{text-align:right;padding:.3rem .7rem;border-bottom:1px solid var(--line);vertical-align:top}
th:first-child,td:first-child{text-align:left;min-width:12rem}
th{font-weight:600;color:var(--soft)}
td{font-variant-numeric:tabular-nums}
.result{white-space:nowrap}.note{text-align:left;min-width:14rem;color:var(--soft)}
summary{cursor:pointer;color:var(--leaf)}
pre{background:var(--code);padding:.8rem;border-radius:.4rem;overflow-x:auto;font:13px/1.45 ui-monospace,monospace}
code{font:.9em ui-monospace,monospace;background:var(--code);padding:.1em .3em;border-radius:.25em}
footer{color:var(--soft);padding:2rem 1.25rem 3rem}
)";

std::string cell(const std::string& text) {
  return "<td>" + svg_escaped(text) + "</td>";
}

std::string findings_table(const std::string& json) {
  if (json.empty()) return "";
  std::string html =
      "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"figures side by side\"><table><thead><tr>"
      "<th scope=\"col\">figure</th><th scope=\"col\">lecture</th><th scope=\"col\">modelled</th>"
      "<th scope=\"col\">measured here</th><th scope=\"col\">result</th><th scope=\"col\">note</th></tr></thead>"
      "<tbody>\n";
  for (const Json& row : parse_json(json, "findings")) {
    const std::string held = row.at("held").get<std::string>();
    html += "<tr>";
    for (const char* key : {"what", "lecture", "modelled", "measured"}) html += cell(row.at(key).get<std::string>());
    html +=
        fmt::format("<td class=\"result {}\">{}</td><td class=\"note\">{}</td></tr>\n",
                    held == "wrong"                            ? "bad"
                    : held == "agrees" || held == "convention" ? "good"
                                                               : "differs",
                    svg_escaped(row.at("result").get<std::string>()), svg_escaped(row.at("note").get<std::string>()));
  }
  return html + "</tbody></table></div>\n";
}

std::string article(const LabResult& one) {
  const std::string name(one.lab->command.name);
  std::string html = fmt::format(
      "<article id=\"{0}\"><div class=\"top\"><h3>{1}</h3><span class=\"tag\"><code>espalier lab {0}</code> · {2:.1f} "
      "s{3}</span></div>\n<p class=\"look\">{4}</p>\n",
      name, svg_escaped(std::string(one.lab->title)), one.seconds,
      one.exit_code == 0 ? "" : fmt::format(" · <span class=\"bad\">exit {}</span>", one.exit_code),
      svg_escaped(std::string(one.lab->look)));
  if (!one.error_text.empty()) html += "<pre class=\"bad\">" + svg_escaped(one.error_text) + "</pre>\n";
  if (!one.svg.empty())
    html += fmt::format("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"picture: {}\">{}</div>\n",
                        svg_escaped(std::string(one.lab->title)), one.svg);
  html += findings_table(one.findings_json);
  if (!one.text.empty())
    html += "<details><summary>full output</summary><pre>" + svg_escaped(one.text) + "</pre></details>\n";
  return html + "</article>\n";
}

}  // namespace

std::string labs_page(const std::vector<LabResult>& results, const std::string& machine) {
  double seconds = 0;
  int failed = 0;
  std::string contents, body, chapter;
  for (const LabResult& one : results) {
    seconds += one.seconds;
    failed += one.exit_code != 0 ? 1 : 0;
    contents += fmt::format("<li><a href=\"#{0}\">{0}</a></li>", one.lab->command.name);
    if (one.chapter != chapter) body += fmt::format("<h2>{}</h2>\n", svg_escaped(chapter = one.chapter));
    body += article(one);
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>Espalier: the lab</title>\n<style>{}</style></head>\n"
      "<body><a class=\"skip\" href=\"#labs\">to the experiments</a>\n<header><h1>The lab</h1>\n"
      "<p class=\"lead\">{} experiments on distributed training, run on {} in {:.0f} s. Each row compares the "
      "lecture's figure with the modelled and the measured one. {}{}</p>\n<nav "
      "aria-label=\"experiments\"><ul>{}</ul></nav></header>\n<main id=\"labs\">\n{}"
      "</main>\n<footer>Written by <code>espalier lab --all</code>. The text, JSON and picture of each lab are in the "
      "same folder.</footer></body></html>\n",
      kStyle, results.size(), svg_escaped(machine), seconds, kMarkLegend,
      failed == 0 ? "" : fmt::format(" <span class=\"bad\">{} failed.</span>", failed), contents, body);
}

}  // namespace esp::app
