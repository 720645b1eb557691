// espalier lab numbers: the figures of the lectures, ours beside them, and what is to be corrected.
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_bars.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/plan/reference.h"

namespace esp::app {
namespace {

struct NumbersLab {
  std::string json, out;
};

// What Adam in mixed precision makes of GPT-3, as the lectures list it.
std::string picture(const std::vector<plan::ReferenceNumber>& numbers) {
  BarChart chart;
  chart.title = "GPT-3's training states, GB";
  chart.parts = {"weights", "gradients", "master weights", "first moments", "second moments"};
  Bar bar;
  bar.name = "175 B";
  for (const char* name : {"weights, 16 bits", "gradients, 16 bits", "master weights, 32 bits",
                           "first moments, 32 bits", "second moments, 32 bits"})
    for (const plan::ReferenceNumber& one : numbers)
      if (one.item == std::string("GPT-3's ") + name) bar.parts.push_back(one.value);
  bar.note = "2800 GB";
  chart.bars.push_back(bar);
  return bars_svg(chart);
}

// Remarks are sentences: they follow the columns, each line as long as it is.
std::string table_of(const std::vector<plan::ReferenceNumber>& numbers) {
  std::vector<Cells> rows;
  for (const plan::ReferenceNumber& one : numbers)
    rows.push_back({one.item, one.printed, one.shown + (one.unit.empty() ? "" : " " + one.unit)});
  std::istringstream lines(text_table({"number", "lecture", "ours"}, rows));
  std::string text, line;
  std::getline(lines, line);
  text = line + "  correction\n";
  for (const plan::ReferenceNumber& one : numbers) {
    std::getline(lines, line);
    text += line + (one.remark.empty() ? "" : "  " + one.remark) + "\n";
  }
  return text;
}

int run_lab_numbers(const NumbersLab& o) {
  const std::vector<plan::ReferenceNumber> numbers = plan::reference_numbers();
  Json report = Json::array();
  for (const plan::ReferenceNumber& one : numbers)
    report.push_back({{"item", one.item},
                      {"printed", one.printed},
                      {"value", one.value},
                      {"unit", one.unit},
                      {"shown", one.shown},
                      {"remark", one.remark}});
  const std::string text = table_of(numbers);
  fmt::print("{}", text);
  write_lab({o.json, o.out}, "numbers", text, report, picture(numbers));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_lab_numbers(CLI::App& app, Chosen& chosen) {
  auto o = keep<NumbersLab>(app, chosen, run_lab_numbers);
  app.add_option("--json", o->json, "write the figures as JSON")->type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture")->type_name("DIR");
}

}  // namespace esp::app
