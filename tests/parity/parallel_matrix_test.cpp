// Every layout of the matrix trains as one process does: in fp64 to 1e-11, in fp32 as rounding allows.
//
// docs/parity.md is the table of errors: ESPALIER_WRITE_DOCS=docs/parity.md build/bin/parallel_parity writes it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "tests/parity/parallel_matrix.h"

namespace esp::parity {
namespace {

struct Errors {
  double loss = 0, parameters = 0;
};
std::map<std::string, Errors>& measured() {
  static std::map<std::string, Errors> errors;  // by row, in fp64
  return errors;
}

Overrides with(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The file of pairs is made by the tests.
Overrides model_of(const LayoutRow& row) {
  Overrides model = small_model(row.arch, row.model);
  for (std::string& one : model)
    if (one == "data.train=PAIRS") one = "data.train=" + pairs_file();
  return model;
}

// A word without a dot is of [parallel].
Overrides keys_of(const Overrides& layout) {
  Overrides keys;
  for (const std::string& one : layout) keys.push_back(one.find('.') < one.find('=') ? one : "parallel." + one);
  return keys;
}

const Trained& one_process(const LayoutRow& row, const std::string& precision) {
  static std::map<std::string, Trained> known;
  const Overrides model = with(model_of(row), {"train.precision=" + precision});
  std::string key;
  for (const std::string& one : model) key += one + " ";
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = train_layout({.ranks = 1, .overrides = model});
}

class Matrix : public testing::TestWithParam<LayoutRow> {};

TEST_P(Matrix, EqualsOneProcess) {
  const LayoutRow& row = GetParam();
  const auto error_in = [&](const std::string& precision) {
    LayoutRun run;
    run.ranks = row.ranks;
    run.overrides = with(with(model_of(row), keys_of(row.layout)), {"train.precision=" + precision});
    const Trained many = train_layout(run), &one = one_process(row, precision);
    std::string worst;
    const Errors errors{loss_error(many, one), parameter_error(many, one, &worst)};
    EXPECT_GT(one.losses.front() - one.losses.back(), 0.1) << "nothing was learned that could differ";
    EXPECT_LE(errors.parameters, precision == "fp64" ? 1e-11 : 1e-3) << worst;  // 1e-3: of Adam
    return errors;
  };
  const Errors fine = error_in("fp64");
  EXPECT_LE(fine.loss, 1e-11);
  const Errors coarse = error_in("fp32");
  EXPECT_LE(coarse.loss, 1e-5);
  measured()[row.name] = fine;
}

INSTANTIATE_TEST_SUITE_P(Layouts, Matrix, testing::ValuesIn(layout_rows().begin(), layout_rows().end()),
                         [](const auto& row) { return std::string(row.param.name); });

std::string line_begin(const LayoutRow& row) {
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
    const Errors& errors = measured().at(row.name);
    text += fmt::format("{} {:.1e} | {:.1e} |\n", line_begin(row), errors.loss, errors.parameters);
  }
  return text;
}

class Writer : public testing::Environment {
  void TearDown() override {
    const char* path = std::getenv("ESPALIER_WRITE_DOCS");
    if (path && measured().size() == layout_rows().size()) std::ofstream(path) << page();
  }
};
const testing::Environment* const kWriter = testing::AddGlobalTestEnvironment(new Writer);

TEST(MatrixPage, TellsOfEveryLayoutAndNoOther) {
  std::ifstream file(ESP_DOCS "/parity.md");
  ASSERT_TRUE(file) << "docs/parity.md is missing: ESPALIER_WRITE_DOCS writes it";
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("| ") && !line.starts_with("| row")) lines.push_back(line);
  ASSERT_EQ(lines.size(), layout_rows().size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string begin = line_begin(layout_rows()[i]);
    EXPECT_TRUE(lines[i].starts_with(begin)) << lines[i] << "\nwanted " << begin;
    double loss = 1, parameters = 1;
    char bar;
    std::istringstream(lines[i].substr(std::min(begin.size(), lines[i].size()))) >> loss >> bar >> parameters;
    EXPECT_LE(loss, 1e-11) << lines[i];
    EXPECT_LE(parameters, 1e-11) << lines[i];
  }
}

}  // namespace
}  // namespace esp::parity
