// What a block keeps for backward, by the allocator, against the textbook's count; and that keeping more or less of it
// changes nothing else.
//
// docs/activation_memory.md is the table: ESPALIER_WRITE_DOCS=docs/activation_memory.md build/bin/activation_parity
// writes it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/parallel/testing.h"
#include "esp/parallel/textbook.h"
#include "tests/parity/activation_runs.h"

namespace esp::parity {
namespace {

using nn::RecomputeMode;

constexpr RecomputeMode kRecomputes[] = {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full};
constexpr const char* kNames[] = {"none", "selective", "full"};

struct Division {
  int tp;
  bool sequence;
};
constexpr Division kDivisions[] = {{1, false}, {2, false}, {2, true}, {4, false}, {4, true}};

model::ModelConfig small(const std::string& arch, int tp) {
  model::ModelConfig c = model::default_config(arch);
  c.layers = 2;
  c.heads = 2 * tp;
  c.dim = 8 * tp;
  c.ffn = 37;
  c.vocab = 29;
  c.seq_len = 9;
  c.dropout = 0.1;
  if (arch == "llama") {
    c.kv_heads = tp;
    c.tie_embeddings = false;
  }
  if (arch == "bert") c.type_vocab = 2;
  return c;
}

class TextbookModels : public testing::TestWithParam<const char*> {};

TEST_P(TextbookModels, AreTheOrdinaryOnes) {
  for (const Division& division : kDivisions) {
    ActivationPlan plan;
    plan.config = small(GetParam(), division.tp);
    const ActivationSeen ordinary = run_pass(plan).front();
    plan.textbook = true;
    plan.tp = division.tp;
    plan.sequence = division.sequence;
    for (const RecomputeMode recompute : kRecomputes) {
      plan.recompute = recompute;
      EXPECT_LT(distance(run_pass(plan), ordinary), 1e-12)
          << fmt::format("tp {} sequence {} recompute {}", plan.tp, plan.sequence, kNames[static_cast<int>(recompute)]);
    }
  }
}

TEST_P(TextbookModels, HaveTheSameBitsRecomputed) {
  ActivationPlan plan;
  plan.config = small(GetParam(), 2);
  plan.textbook = true;
  plan.tp = 2;
  plan.sequence = true;
  const auto kept = run_pass(plan);
  for (const RecomputeMode recompute : {RecomputeMode::selective, RecomputeMode::full}) {
    plan.recompute = recompute;
    const auto again = run_pass(plan);
    for (size_t rank = 0; rank < kept.size(); ++rank) {
      EXPECT_EQ(again[rank].loss, kept[rank].loss);
      EXPECT_EQ(again[rank].gradients, kept[rank].gradients);
    }
  }
}

// In 16 bits scores are rounded before the softmax, as the textbook's are: further from exact, but not by much.
TEST_P(TextbookModels, AreNearTheExactOnesIn16Bits) {
  ActivationPlan plan;
  plan.config = small(GetParam(), 2);
  const ActivationSeen exact = run_pass(plan).front();
  plan.dtype = DType::bf16;
  const auto ordinary = run_pass(plan);
  plan.textbook = true;
  const auto textbook = run_pass(plan);
  EXPECT_NEAR(textbook[0].loss, exact.loss, 0.02 * exact.loss);
  EXPECT_LT(distance(textbook, exact), 2 * distance(ordinary, exact));
}

INSTANTIATE_TEST_SUITE_P(Archs, TextbookModels, testing::Values("gpt", "llama", "bert", "t5"),
                         [](const auto& about) { return std::string(about.param); });

TEST(Textbook, IsRefusedWhereTheContextIsDivided) {
  parallel::run_model_ranks(2, [](comm::Communicator* world) {
    parallel::MeshShape shape;
    shape.cp = 2;
    const parallel::Mesh mesh(shape, world);
    EXPECT_THROW(parallel::make_textbook_regions(mesh, {}), UsageError);
  });
}

// A block of s 128, b 2, h 256, a 8, in bf16 with dropout: the statistics of norms, which the textbook leaves out, are
// 16 bytes of a row's 13 824.
ActivationPlan measured_plan(const Division& division, RecomputeMode recompute, bool textbook) {
  ActivationPlan plan;
  plan.config = model::default_config("gpt");
  plan.config.heads = 8;
  plan.config.dim = 256;
  plan.config.vocab = 64;
  plan.config.seq_len = plan.tokens = 128;
  plan.config.dropout = 0.1;
  plan.dtype = DType::bf16;
  plan.tp = division.tp;
  plan.sequence = division.sequence;
  plan.recompute = recompute;
  plan.textbook = textbook;
  return plan;
}

struct Row {
  Division division;
  RecomputeMode recompute;
  double formula;
  BlockBytes textbook, ordinary;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> measured = [] {
    std::vector<Row> all;
    for (const Division& division : kDivisions)
      for (const RecomputeMode recompute : kRecomputes)
        all.push_back({division, recompute, bytes_by_count(measured_plan(division, recompute, true)),
                       bytes_per_block(measured_plan(division, recompute, true)),
                       bytes_per_block(measured_plan(division, recompute, false))});
    return all;
  }();
  return measured;
}

std::string line_of(const Row& row) {
  return fmt::format("| {} | {} | {} | {:.0f} | {} | {} | {:.2f} |", row.division.tp,
                     row.division.sequence ? "yes" : "no", kNames[static_cast<int>(row.recompute)], row.formula,
                     row.textbook.kept, row.ordinary.kept,
                     static_cast<double>(row.ordinary.kept) / static_cast<double>(row.textbook.kept));
}

TEST(ActivationBytes, OfTheTextbooksBlockAreItsFormula) {
  for (const Row& row : rows()) {
    EXPECT_NEAR(static_cast<double>(row.textbook.kept), row.formula, 0.01 * row.formula) << line_of(row);
    EXPECT_NEAR(static_cast<double>(row.textbook.peak), row.formula, 0.01 * row.formula) << line_of(row);
  }
}

TEST(ActivationBytes, OfTheOrdinaryBlockAreTheirCountAndNeverMore) {
  for (const Row& row : rows()) {
    const double count = bytes_by_count(measured_plan(row.division, row.recompute, false));
    EXPECT_NEAR(static_cast<double>(row.ordinary.kept), count, 0.01 * count) << line_of(row);
    EXPECT_LE(row.ordinary.kept, row.textbook.kept) << line_of(row);
  }
}

TEST(ActivationBytes, FollowTheFormulaAtOtherShapes) {
  for (const int64_t tokens : {32, 192}) {
    ActivationPlan plan = measured_plan({4, true}, RecomputeMode::none, true);
    plan.config.dim = 384;
    plan.config.heads = 12;
    plan.config.seq_len = plan.tokens = tokens;
    plan.batch = 3;
    const double count = bytes_by_count(plan);
    EXPECT_NEAR(static_cast<double>(bytes_per_block(plan).kept), count, 0.01 * count) << tokens;
  }
}

constexpr const char* kBegin = "| t | sequence parallel | recompute |";

TEST(ActivationPage, SaysWhatTheAllocatorSays) {
  std::ifstream file(ESP_DOCS "/activation_memory.md");
  ASSERT_TRUE(file) << "docs/activation_memory.md is missing";
  std::stringstream page;
  bool in_table = false, written = false;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    in_table = line.starts_with(kBegin) || (in_table && line.starts_with("|"));
    const bool of_rows = in_table && !line.starts_with(kBegin) && !line.starts_with("|-");
    if (of_rows) lines.push_back(line);
    if (!of_rows) page << line << '\n';
    if (in_table && !written && line.starts_with("|-")) {
      for (const Row& row : rows()) page << line_of(row) << '\n';
      written = true;
    }
  }
  if (const char* path = std::getenv("ESPALIER_WRITE_DOCS")) {
    std::ofstream(path) << page.str();
    return;
  }
  std::vector<std::string> wanted;
  for (const Row& row : rows()) wanted.push_back(line_of(row));
  EXPECT_EQ(lines, wanted);
}

}  // namespace
}  // namespace esp::parity
