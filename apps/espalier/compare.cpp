// espalier compare RUN…: prints one table that compares runs.
#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/output_file.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/base/format.h"
#include "esp/dash/run_folder.h"
#include "esp/train/progress.h"

namespace esp::app {
namespace {

struct CompareOptions {
  std::vector<std::string> folders;
  std::string json;
  bool markdown = false;
};

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}
std::string loss(const Json& value) {
  return fmt::format("{:.4f}", value.get<double>());
}
std::string rounded(const Json& value) {
  return fmt::format("{:.0f}", value.get<double>());
}
std::string bytes(const Json& value) {
  return format_bytes(static_cast<uint64_t>(std::clamp(value.get<double>(), 0.0, 1e18)));
}
std::string seconds(const Json& value) {
  return train::format_seconds(value.get<double>());
}

struct Column {
  const char *key, *head;
  std::string (*text)(const Json& value);
};

// Must be the same columns as the dashboard's (web/comparison.js).
constexpr Column kColumns[] = {{"run", "run", plain},
                               {"method", "method", plain},
                               {"compressor", "compressor", plain},
                               {"layout", "layout", plain},
                               {"steps", "steps", plain},
                               {"val_loss", "val loss", loss},
                               {"tokens_per_s", "tokens/s", rounded},
                               {"bytes_sent_per_step", "sent/step/rank", bytes},
                               {"peak_bytes", "peak memory", bytes},
                               {"wall_s", "wall time", seconds}};

// The text of one cell. Names come from file systems and run files, so control characters are replaced, and for
// Markdown also characters that end a cell.
std::string cell(std::string text, bool markdown) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  for (size_t at = 0; markdown && (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

int run_compare(const CompareOptions& o) {
  std::vector<std::string> refused;
  Json rows = Json::array();
  for (const dash::FoundRun& found : dash::find_all_runs(o.folders, &refused)) {
    Json row = dash::RunFolder(found.path, found.name).list_entry().at("row");
    if (const auto error = row.find("error"); error != row.end()) {
      refused.push_back(fmt::format("{}: {}", found.path, error->get<std::string>()));
      row.erase(error);
    }
    rows.push_back(std::move(row));
  }
  std::string why;
  for (const std::string& one : refused) why += (why.empty() ? "" : "\n") + one;
  if (rows.empty()) throw IoError(why);
  if (!why.empty()) fmt::print(stderr, "{}\n", why);

  Cells head;
  for (const Column& column : kColumns) head.emplace_back(column.head);
  std::vector<Cells> lines;
  for (const Json& row : rows) {
    Cells& line = lines.emplace_back();
    for (const Column& column : kColumns) {
      const Json& value = row.at(column.key);
      line.push_back(value.is_null() ? "-" : cell(column.text(value), o.markdown));
    }
  }
  if (!o.json.empty()) write_file(o.json, rows.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  fmt::print("{}", o.markdown ? markdown_table(head, lines) : text_table(head, lines));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_compare(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<CompareOptions>(app, chosen, run_compare);
  app.add_option("runs", o->folders, "run folders, or folders of runs").required().type_name("RUN");
  app.add_flag("--markdown", o->markdown, "print the table as Markdown");
  app.add_option("--json", o->json, "write the rows as JSON; - is stdout").type_name("FILE");
  app.footer(
      "A value that a run folder does not contain is shown as -. Each folder without a run is reported on stderr; the\n"
      "exit code is 4 when no folder contains a run.");
}

}  // namespace esp::app
