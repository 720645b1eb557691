// Every layout of the matrix must train like one process: in fp64 within 1e-11, in fp32 within rounding.
//
// docs/parity.md contains the table of errors. ESPALIER_WRITE_DOCS=docs/parity.md build/bin/parallel_parity writes it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "tests/parity/parallel_matrix.h"

namespace esp::parity {
namespace {

struct LayoutErrors {
  double loss = 0, parameters = 0;
};
std::map<std::string, LayoutErrors>& measured_errors() {
  static std::map<std::string, LayoutErrors> errors;  // row name → its errors, measured in fp64
  return errors;
}

Overrides merge(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Overrides of the row's model. The word PAIRS is replaced by the path of the generated pairs file.
Overrides model_of(const LayoutRow& row) {
  Overrides model = small_model(row.arch, row.model);
  for (std::string& one : model)
    if (one == "data.train=PAIRS") one = "data.train=" + pairs_file();
  return model;
}

// Puts "parallel." before every key that has no dot.
Overrides with_parallel_prefix(const Overrides& layout) {
  Overrides keys;
  for (const std::string& one : layout) keys.push_back(one.find('.') < one.find('=') ? one : "parallel." + one);
  return keys;
}

const LayoutResult& one_process(const LayoutRow& row, const std::string& precision) {
  static std::map<std::string, LayoutResult> cache;
  const Overrides model = merge(model_of(row), {"train.precision=" + precision});
  std::string key;
  for (const std::string& one : model) key += one + " ";
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  return cache[key] = train_layout({.ranks = 1, .overrides = model});
}

class LayoutMatrix : public testing::TestWithParam<LayoutRow> {};

TEST_P(LayoutMatrix, EqualsOneProcess) {
  const LayoutRow& row = GetParam();
  const auto measure_error = [&](const std::string& precision) {
    LayoutRun run;
    run.ranks = row.ranks;
    run.overrides = merge(merge(model_of(row), with_parallel_prefix(row.layout)), {"train.precision=" + precision});
    const LayoutResult many = train_layout(run), &one = one_process(row, precision);
    std::string worst;
    const LayoutErrors errors{loss_error(many, one), parameter_error(many, one, &worst)};
    EXPECT_GT(one.losses.front() - one.losses.back(), 0.1) << "the loss must fall, otherwise layouts cannot differ";
    // The bound for fp32 is 1e-3, because Adam amplifies rounding errors.
    EXPECT_LE(errors.parameters, precision == "fp64" ? 1e-11 : 1e-3) << worst;
    return errors;
  };
  const LayoutErrors fp64_errors = measure_error("fp64");
  EXPECT_LE(fp64_errors.loss, 1e-11);
  const LayoutErrors fp32_errors = measure_error("fp32");
  EXPECT_LE(fp32_errors.loss, 1e-5);
  measured_errors()[row.name] = fp64_errors;
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutMatrix, testing::ValuesIn(layout_rows().begin(), layout_rows().end()),
                         [](const auto& row) { return std::string(row.param.name); });

std::string row_prefix(const LayoutRow& row) {
  return fmt::format("| {} | {} | {} |", row.name, row.arch, layout_text(row));
}

std::string page() {
  std::string text =
      "# Does every layout train like one process?\n"
      "\n"
      "```sh elsewhere: a test program of the build tree\n"
      "ESPALIER_WRITE_DOCS=docs/parity.md build/bin/parallel_parity    # writes this page\n"
      "```\n"
      "\n"
      "Yes, to rounding: each row trains a small model in fp64 for ten steps of AdamW with clipping, under the layout "
      "and as\n"
      "one process, from the same seed. *loss* is the largest difference of any step's loss, and of an evaluation "
      "after the\n"
      "last. *parameters* is the relative L2 distance of the parameter that differs most. Both must stay below 1e-11; "
      "in fp32\n"
      "the limits are 1e-5 and 1e-3. A layout has tp·pp·cp·dp ranks; keys in brackets hold for both runs.\n"
      "\n"
      "| row | model | layout | loss | parameters |\n"
      "|---|---|---|---|---|\n";
  for (const LayoutRow& row : layout_rows()) {
    const LayoutErrors& errors = measured_errors().at(row.name);
    text += fmt::format("{} {:.1e} | {:.1e} |\n", row_prefix(row), errors.loss, errors.parameters);
  }
  return text;
}

class PageWriter : public testing::Environment {
  void TearDown() override {
    const char* path = std::getenv("ESPALIER_WRITE_DOCS");
    if (path && measured_errors().size() == layout_rows().size()) std::ofstream(path) << page();
  }
};
const testing::Environment* const kPageWriter = testing::AddGlobalTestEnvironment(new PageWriter);

TEST(LayoutMatrixPage, ListsEveryLayoutOnce) {
  std::ifstream file(ESP_DOCS "/parity.md");
  ASSERT_TRUE(file) << "docs/parity.md is missing; ESPALIER_WRITE_DOCS=docs/parity.md writes it";
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("| ") && !line.starts_with("| row")) lines.push_back(line);
  ASSERT_EQ(lines.size(), layout_rows().size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string begin = row_prefix(layout_rows()[i]);
    EXPECT_TRUE(lines[i].starts_with(begin)) << lines[i] << "\nexpected a line that begins with " << begin;
    double loss = 1, parameters = 1;
    char bar;
    std::istringstream(lines[i].substr(std::min(begin.size(), lines[i].size()))) >> loss >> bar >> parameters;
    EXPECT_LE(loss, 1e-11) << lines[i];
    EXPECT_LE(parameters, 1e-11) << lines[i];
  }
}

}  // namespace
}  // namespace esp::parity
