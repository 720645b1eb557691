#include "esp/dash/page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/dash/access_guard.h"
#include "esp/dash/json_text.h"
#include "esp/dash/web_files.h"

namespace esp::dash {
namespace {

// Scripts in load order: each script comes after the scripts that it uses.
constexpr std::string_view kScripts[] = {"dom.js",    "format.js",   "source.js",  "chart.js",    "curves.js",
                                         "memory.js", "timeline.js", "traffic.js", "overview.js", "comparison.js",
                                         "diff.js",   "about.js",    "planner.js", "main.js"};
constexpr int kReportBuckets = 1500, kReportSpans = 3000;
constexpr const char* kReportKeys =
    "loss val_loss tokens_per_s mfu grad_norm lr step_ms exposed_ms waited_ms "
    "slowest_rank memory_bytes bytes_sent_per_step";

std::string_view file(std::string_view name) {
  for (const EmbeddedText& one : embedded_texts())
    if (one.name == name) return one.text;
  throw InternalError(fmt::format("web/{} is not embedded in this binary", name));
}

std::string with(std::string page, std::string_view mark, const std::string& text) {
  const size_t at = page.find(mark);
  ESP_CHECK(at != std::string::npos);
  return page.replace(at, mark.size(), text);
}

// Escapes JSON for a script element, so that it contains no closing tag.
std::string in_page(std::string json) {
  std::string out;
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

std::vector<std::string> report_keys() {
  std::vector<std::string> keys;
  const std::string_view all = kReportKeys;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find(' ', at), all.size());
    keys.emplace_back(all.substr(at, end - at));
    at = end + 1;
  }
  return keys;
}

}  // namespace

std::string page_script() {
  std::string joined = "(() => {\n\"use strict\";\n";
  for (const std::string_view name : kScripts) joined += file(name);
  return joined + "})();\n";
}

std::string page_style() {
  return std::string(file("style.css"));
}

std::string live_page() {
  return with(with(std::string(file("index.html")), "<!--HEAD-->", "<link rel=\"stylesheet\" href=\"style.css\">"),
              "<!--TAIL-->", "<script src=\"app.js\"></script>");
}

std::string report_page(const std::vector<RunFolder*>& runs, const DataProviders& providers) {
  const auto dumped = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
  std::string data = "{\"runs\":[";
  for (size_t i = 0; i < runs.size(); ++i) {
    RunFolder& run = *runs[i];
    std::string timeline = "null";
    Json list_entry = run.list_entry();
    if (list_entry.at("trace").get<bool>()) {
      try {
        timeline = run.timeline(-1e300, 1e300, kReportSpans);
      } catch (const std::exception& error) {
        timeline = "{\"error\":" + quote_json(error.what()) + "}";
      }
    }
    std::string detail = "{}", series = "{}";  // both stay empty for an unreadable run; the page shows the error
    try {
      if (list_entry["state"] != kUnreadable) {
        series = run.series(report_keys(), -1e300, 1e300, kReportBuckets);
        detail = run.detail(providers);
      }
    } catch (const std::exception& error) {
      list_entry["state"] = kUnreadable;
      list_entry["row"]["error"] = error.what();
    }
    const Json sample = providers.sample ? providers.sample(run.path()) : Json(nullptr);
    data += (i ? "," : "") + fmt::format("{{\"brief\":{},\"detail\":{},\"series\":{},\"timeline\":{},\"sample\":{}}}",
                                         dumped(list_entry), detail, series, timeline, dumped(sample));
  }
  data += "]}";
  const std::string nonce = random_token();
  // Only scripts and styles with this file's random nonce run, so script text from a run's files does not.
  const std::string head = fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-{0}'; style-src "
      "'nonce-{0}'; img-src data:; base-uri 'none'; form-action 'none'\">\n<style nonce=\"{0}\">\n{1}</style>",
      nonce, page_style());
  const std::string tail =
      fmt::format("<script type=\"application/json\" id=\"data\">{1}</script>\n<script nonce=\"{0}\">\n{2}</script>",
                  nonce, in_page(data), page_script());
  return with(with(std::string(file("index.html")), "<!--HEAD-->", head), "<!--TAIL-->", tail);
}

}  // namespace esp::dash
