// Activation memory that a transformer block keeps for backward: measured by the allocator and compared with the
// textbook formula. Keeping more or fewer activations must change neither losses nor gradients.
//
// The last test checks the table in docs/activation_memory.md. This command rewrites it:
// ESPALIER_WRITE_DOCS=docs/activation_memory.md build/bin/activation_parity
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
constexpr const char* kRecomputeNames[] = {"none", "selective", "full"};

struct TensorSplit {
  int tp;
  bool sequence;
};
constexpr TensorSplit kTensorSplits[] = {{1, false}, {2, false}, {2, true}, {4, false}, {4, true}};

model::ModelConfig small_model(const std::string& arch, int tp) {
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

TEST_P(TextbookModels, EqualEspalierModelsInF64) {
  for (const TensorSplit& split : kTensorSplits) {
    ActivationRunSpec spec;
    spec.config = small_model(GetParam(), split.tp);
    const ActivationResult espalier = run_training_pass(spec).front();
    spec.textbook = true;
    spec.tp = split.tp;
    spec.sequence = split.sequence;
    for (const RecomputeMode recompute : kRecomputes) {
      spec.recompute = recompute;
      EXPECT_LT(max_relative_error(run_training_pass(spec), espalier), 1e-12) << fmt::format(
          "tp {} sequence {} recompute {}", spec.tp, spec.sequence, kRecomputeNames[static_cast<int>(recompute)]);
    }
  }
}

TEST_P(TextbookModels, RecomputationChangesNoBit) {
  ActivationRunSpec spec;
  spec.config = small_model(GetParam(), 2);
  spec.textbook = true;
  spec.tp = 2;
  spec.sequence = true;
  const auto kept = run_training_pass(spec);
  for (const RecomputeMode recompute : {RecomputeMode::selective, RecomputeMode::full}) {
    spec.recompute = recompute;
    const auto again = run_training_pass(spec);
    for (size_t rank = 0; rank < kept.size(); ++rank) {
      EXPECT_EQ(again[rank].loss, kept[rank].loss);
      EXPECT_EQ(again[rank].gradients, kept[rank].gradients);
    }
  }
}

// In 16 bits the textbook model rounds the attention scores before the softmax. Its error may therefore be larger than
// that of the fused model, but by less than a factor of two.
TEST_P(TextbookModels, LossAndGradientsIn16BitsAreCloseToF64) {
  ActivationRunSpec spec;
  spec.config = small_model(GetParam(), 2);
  const ActivationResult exact = run_training_pass(spec).front();
  spec.dtype = DType::bf16;
  const auto espalier = run_training_pass(spec);
  spec.textbook = true;
  const auto textbook = run_training_pass(spec);
  EXPECT_NEAR(textbook[0].loss, exact.loss, 0.02 * exact.loss);
  EXPECT_LT(max_relative_error(textbook, exact), 2 * max_relative_error(espalier, exact));
}

INSTANTIATE_TEST_SUITE_P(Archs, TextbookModels, testing::Values("gpt", "llama", "bert", "t5"),
                         [](const auto& arch) { return std::string(arch.param); });

TEST(TextbookOps, RejectContextParallelism) {
  parallel::run_model_ranks(2, [](comm::Communicator* world) {
    parallel::MeshShape shape;
    shape.cp = 2;
    const parallel::Mesh mesh(shape, world);
    EXPECT_THROW(parallel::make_textbook_ops(mesh, {}), UsageError);
  });
}

// One block with s = 128, b = 2, h = 256, a = 8, in bf16 with dropout. The formula omits the norm statistics: 16 of
// 13,824 bytes per row.
ActivationRunSpec measured_spec(const TensorSplit& split, RecomputeMode recompute, bool textbook) {
  ActivationRunSpec spec;
  spec.config = model::default_config("gpt");
  spec.config.heads = 8;
  spec.config.dim = 256;
  spec.config.vocab = 64;
  spec.config.seq_len = spec.tokens = 128;
  spec.config.dropout = 0.1;
  spec.dtype = DType::bf16;
  spec.tp = split.tp;
  spec.sequence = split.sequence;
  spec.recompute = recompute;
  spec.textbook = textbook;
  return spec;
}

struct ActivationRow {
  TensorSplit split;
  RecomputeMode recompute;
  double formula;
  BlockBytes textbook, espalier;
};

const std::vector<ActivationRow>& table_rows() {
  static const std::vector<ActivationRow> measured = [] {
    std::vector<ActivationRow> all;
    for (const TensorSplit& split : kTensorSplits)
      for (const RecomputeMode recompute : kRecomputes)
        all.push_back({split, recompute, expected_block_bytes(measured_spec(split, recompute, true)),
                       bytes_per_block(measured_spec(split, recompute, true)),
                       bytes_per_block(measured_spec(split, recompute, false))});
    return all;
  }();
  return measured;
}

std::string table_line(const ActivationRow& row) {
  return fmt::format("| {} | {} | {} | {:.0f} | {} | {} | {:.2f} |", row.split.tp, row.split.sequence ? "yes" : "no",
                     kRecomputeNames[static_cast<int>(row.recompute)], row.formula, row.textbook.kept,
                     row.espalier.kept,
                     static_cast<double>(row.espalier.kept) / static_cast<double>(row.textbook.kept));
}

TEST(ActivationBytes, TextbookBlockMatchesItsFormula) {
  for (const ActivationRow& row : table_rows()) {
    EXPECT_NEAR(static_cast<double>(row.textbook.kept), row.formula, 0.01 * row.formula) << table_line(row);
    EXPECT_NEAR(static_cast<double>(row.textbook.peak), row.formula, 0.01 * row.formula) << table_line(row);
  }
}

TEST(ActivationBytes, EspalierBlockMatchesItsFormulaAndNeverExceedsTextbookBlock) {
  for (const ActivationRow& row : table_rows()) {
    const double count = expected_block_bytes(measured_spec(row.split, row.recompute, false));
    EXPECT_NEAR(static_cast<double>(row.espalier.kept), count, 0.01 * count) << table_line(row);
    EXPECT_LE(row.espalier.kept, row.textbook.kept) << table_line(row);
  }
}

TEST(ActivationBytes, MatchTheFormulaAtOtherShapes) {
  for (const int64_t tokens : {32, 192}) {
    ActivationRunSpec spec = measured_spec({4, true}, RecomputeMode::none, true);
    spec.config.dim = 384;
    spec.config.heads = 12;
    spec.config.seq_len = spec.tokens = tokens;
    spec.batch = 3;
    const double count = expected_block_bytes(spec);
    EXPECT_NEAR(static_cast<double>(bytes_per_block(spec).kept), count, 0.01 * count) << tokens;
  }
}

constexpr const char* kTableHeading = "| t | sequence parallel | recompute |";

TEST(ActivationMemoryPage, TableMatchesMeasurement) {
  std::ifstream file(ESP_DOCS "/activation_memory.md");
  ASSERT_TRUE(file) << "docs/activation_memory.md is missing";
  std::stringstream page;
  bool in_table = false, written = false;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    in_table = line.starts_with(kTableHeading) || (in_table && line.starts_with("|"));
    const bool of_rows = in_table && !line.starts_with(kTableHeading) && !line.starts_with("|-");
    if (of_rows) lines.push_back(line);
    if (!of_rows) page << line << '\n';
    if (in_table && !written && line.starts_with("|-")) {
      for (const ActivationRow& row : table_rows()) page << table_line(row) << '\n';
      written = true;
    }
  }
  if (const char* path = std::getenv("ESPALIER_WRITE_DOCS")) {
    std::ofstream(path) << page.str();
    return;
  }
  std::vector<std::string> expected;
  for (const ActivationRow& row : table_rows()) expected.push_back(table_line(row));
  EXPECT_EQ(lines, expected);
}

}  // namespace
}  // namespace esp::parity
