#include "esp/data/objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A source of the tokens 0, 1, 2, …: the id of a token equals its position.
TokenSource counting(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  TokenSource source;
  source.add(std::move(tokens), "counting");
  return source;
}

std::vector<int32_t> row(const std::vector<int32_t>& buffer, int64_t index, int64_t width) {
  return {buffer.begin() + index * width, buffer.begin() + (index + 1) * width};
}

// Checks that a sample gives the same row in any batch.
void expect_rows_depend_on_the_sample_alone(const Objective& objective) {
  Batch whole, part;
  fill_batch(objective, 100, 12, whole);
  const BatchShape shape = objective.shape();
  for (int64_t at : {0, 5, 11}) {
    fill_batch(objective, 100 + static_cast<uint64_t>(at), 1, part);
    EXPECT_EQ(part.inputs, row(whole.inputs, at, shape.T));
    EXPECT_EQ(part.targets, row(whole.targets, at, shape.num_targets));
    EXPECT_EQ(part.lengths, row(whole.lengths, at, 1));
    if (shape.T_decoder > 0) {
      EXPECT_EQ(part.decoder_inputs, row(whole.decoder_inputs, at, shape.T_decoder));
    }
    EXPECT_EQ(part.first_sample, 100 + static_cast<uint64_t>(at));
  }
  int64_t counted =
      std::count_if(whole.targets.begin(), whole.targets.end(), [](int32_t t) { return t != kIgnoreIndex; });
  EXPECT_EQ(whole.counted, counted);
}

TEST(NextToken, TargetsAreInputsShiftedByOne) {
  TokenSource source = counting(1001);
  auto objective = make_next_token(source, {.T = 10, .seed = 1});
  EXPECT_EQ(objective->samples_per_epoch(), 100u);
  Batch batch;
  fill_batch(*objective, 7, 4, batch);
  EXPECT_EQ(batch.counted, 40);
  for (size_t i = 0; i < batch.inputs.size(); ++i) EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
  expect_rows_depend_on_the_sample_alone(*objective);
}

TEST(NextToken, CountsEveryTargetOnceInEvaluation) {
  TokenSource source = counting(24);
  auto objective = make_next_token(source, {.T = 10, .order = SampleOrder::sequential});
  Batch batch;
  fill_batch(*objective, 0, 3, batch);
  EXPECT_EQ(batch.counted, 23);
  EXPECT_THAT(batch.lengths, ElementsAre(10, 10, 3));
  EXPECT_THAT(row(batch.inputs, 2, 10), ElementsAre(20, 21, 22, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(row(batch.targets, 2, 10), ElementsAre(21, 22, 23, -1, -1, -1, -1, -1, -1, -1));
}

TEST(MaskedToken, SelectsFifteenPercentOfTokensAndMasksReplacesOrKeepsThem) {
  TokenSource source = counting(100'001);
  MaskedTokenOptions options{.T = 102, .seed = 4, .vocab = 200'000, .mask = 199'999, .cls = 199'998, .sep = 199'997};
  auto objective = make_masked_token(source, options);
  Batch batch;
  fill_batch(*objective, 0, 1000, batch);
  std::map<std::string, int> kinds;
  for (int64_t b = 0; b < 1000; ++b) {
    auto inputs = row(batch.inputs, b, 102), targets = row(batch.targets, b, 102);
    ASSERT_EQ(inputs.front(), 199'998);
    ASSERT_EQ(inputs.back(), 199'997);
    ASSERT_EQ(targets.front(), kIgnoreIndex);
    ASSERT_EQ(targets.back(), kIgnoreIndex);
    for (size_t p = 1; p < 101; ++p) {
      if (targets[p] == kIgnoreIndex) continue;
      // the target is the original id; [CLS] shifts it by one
      ASSERT_EQ(targets[p] % 100, static_cast<int32_t>(p - 1));
      ++kinds[inputs[p] == 199'999 ? "mask" : inputs[p] == targets[p] ? "same" : "random"];
    }
  }
  EXPECT_EQ(batch.counted, kinds["mask"] + kinds["same"] + kinds["random"]);
  EXPECT_NEAR(double(batch.counted), 15000, 500);
  EXPECT_NEAR(kinds["mask"], 12000, 450);
  EXPECT_NEAR(kinds["random"], 1500, 200);
  EXPECT_NEAR(kinds["same"], 1500, 200);
  expect_rows_depend_on_the_sample_alone(*objective);
}

TEST(MaskedToken, ChoosesAtLeastOneTarget) {
  TokenSource source = counting(1000);
  auto objective = make_masked_token(source, {.T = 3, .vocab = 1000, .mask = 5});
  Batch batch;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    fill_batch(*objective, sample, 1, batch);
    EXPECT_GE(batch.counted, 1);
  }
}

TEST(MaskedToken, RejectsTokenizerWithoutMaskId) {
  TokenSource source = counting(1000);
  EXPECT_THROW(make_masked_token(source, {.T = 8, .vocab = 1000}), UsageError);
}

// Replaces each sentinel by its decoder span, which restores the text.
std::vector<int32_t> undo(std::vector<int32_t> encoder, const std::vector<int32_t>& decoder, int32_t text_vocab,
                          int32_t eos) {
  std::map<int32_t, std::vector<int32_t>> spans;
  int32_t sentinel = -1;
  for (int32_t id : decoder) {
    if (id == kIgnoreIndex || id == eos) break;
    if (id >= text_vocab) sentinel = id;
    spans[sentinel];
    if (id < text_vocab) spans[sentinel].push_back(id);
  }
  std::vector<int32_t> text;
  for (int32_t id : encoder) {
    if (id == eos) break;
    if (id < text_vocab)
      text.push_back(id);
    else
      text.insert(text.end(), spans.at(id).begin(), spans.at(id).end());
  }
  return text;
}

TEST(SpanCorruption, EncoderAndDecoderRowsRestoreText) {
  TokenSource source = counting(5000);
  const int32_t eos = 5100;
  SpanCorruptionOptions options{
      .T = 128, .seed = 3, .vocab = 5500, .text_vocab = 5000, .eos = eos, .pad = 0, .decoder_start = 0};
  auto objective = make_span_corruption(source, options);
  const BatchShape shape = objective->shape();
  Batch batch;
  fill_batch(*objective, 0, 30, batch);
  for (int64_t b = 0; b < 30; ++b) {
    auto encoder = row(batch.inputs, b, 128), targets = row(batch.targets, b, shape.T_decoder),
         given = row(batch.decoder_inputs, b, shape.T_decoder);
    encoder.resize(static_cast<size_t>(batch.lengths[static_cast<size_t>(b)]));
    auto text = undo(encoder, targets, 5000, eos);
    ASSERT_GE(text.size(), 140u);  // 128 encoder ids represent a longer text
    for (size_t i = 0; i < text.size(); ++i) ASSERT_EQ(text[i], text[0] + static_cast<int32_t>(i));
    EXPECT_EQ(targets[0], 5499);
    EXPECT_EQ(targets.back(), eos);
    EXPECT_EQ(given[0], 0);
    for (size_t i = 1; i < given.size(); ++i) EXPECT_EQ(given[i], targets[i - 1]);
  }
  EXPECT_EQ(batch.counted, 30 * shape.T_decoder);
  EXPECT_EQ(batch.lengths[0], 128);
  expect_rows_depend_on_the_sample_alone(*objective);
}

TEST(SpanCorruption, RemovesRequestedShareOfTokens) {
  TokenSource source = counting(100'000);
  auto objective = make_span_corruption(source, {.T = 512, .vocab = 101'000, .text_vocab = 100'000, .eos = 1});
  // 568 tokens, 85 of them in 28 spans: the sizes T5 uses for 512 and 114.
  EXPECT_EQ(objective->shape().T_decoder, 114);
}

TEST(SpanCorruption, RejectsVocabularyWithoutRoomForSentinels) {
  TokenSource source = counting(1000);
  EXPECT_THROW(make_span_corruption(source, {.T = 64, .vocab = 1000, .text_vocab = 1000}), UsageError);
}

TEST(SpanCorruption, RowsRestoreShortLastWindow) {
  TokenSource source = counting(100);
  auto objective = make_span_corruption(
      source, {.T = 32, .order = SampleOrder::sequential, .vocab = 2000, .text_vocab = 1000, .eos = 1500});
  Batch batch;
  auto samples = static_cast<int64_t>(objective->samples_per_epoch());
  fill_batch(*objective, 0, samples, batch);
  std::vector<int32_t> text;
  for (int64_t b = 0; b < samples; ++b) {
    auto encoder = row(batch.inputs, b, 32);
    encoder.resize(static_cast<size_t>(batch.lengths[static_cast<size_t>(b)]));
    auto part = undo(encoder, row(batch.targets, b, objective->shape().T_decoder), 1000, 1500);
    text.insert(text.end(), part.begin(), part.end());
  }
  ASSERT_EQ(text.size(), 99u);
  for (size_t i = 0; i < text.size(); ++i) EXPECT_EQ(text[i], static_cast<int32_t>(i));
}

struct ItemObjectives : testing::Test {
  obs::TemporaryFolder folder;
  std::unique_ptr<Tokenizer> bytes = make_byte_tokenizer();
  Items read(const std::string& lines, ItemOptions options = {}) {
    obs::write_whole_file(folder / "items.jsonl", lines);
    options.paths = {folder / "items.jsonl"};
    return read_items(options, *bytes);
  }
  std::string refusal(const std::string& lines) {
    try {
      read(lines);
    } catch (const IoError& error) {
      return error.what();
    }
    return "no IoError";
  }
};

TEST_F(ItemObjectives, FillRowsForClassification) {
  Items items = read("{\"text\": \"abcdef\", \"label\": 2}\n{\"text\": \"x\", \"label\": 0}\n");
  EXPECT_EQ(items.num_classes, 3);
  auto objective =
      make_classification(items, {.T = 5, .order = SampleOrder::sequential, .cls = 300, .sep = 301, .pad = 302});
  EXPECT_EQ(objective->num_classes(), 3);
  Batch batch;
  fill_batch(*objective, 0, 2, batch);
  EXPECT_THAT(batch.inputs, ElementsAre(300, 'a', 'b', 'c', 301, 300, 'x', 301, 302, 302));
  EXPECT_THAT(batch.lengths, ElementsAre(5, 3));
  EXPECT_THAT(batch.targets, ElementsAre(2, 0));
  EXPECT_EQ(batch.counted, 2);
}

TEST_F(ItemObjectives, NumberStringLabelsInByteOrder) {
  Items items = read(
      "{\"text\": \"\", \"label\": \"pos\"}\n{\"text\": \"\", \"label\": \"neg\"}\n"
      "{\"text\": \"\", \"label\": \"pos\"}\n");
  EXPECT_THAT(items.classes, ElementsAre("neg", "pos"));
  EXPECT_THAT(items.labels, ElementsAre(1, 0, 1));
  EXPECT_EQ(items.num_classes, 2);
  EXPECT_THAT(read("{\"text\": \"\", \"label\": true}").labels, ElementsAre(1));
}

TEST_F(ItemObjectives, ReadNumericAndStringLabelsFromTables) {
  const auto read_csv = [&](std::string_view text) {
    obs::write_whole_file(folder / "items.csv", text);
    return read_items({.paths = {folder / "items.csv"}}, *bytes);
  };
  EXPECT_THAT(read_csv("label,text\n1,\"a, b\"\n0,c\n").labels, ElementsAre(1, 0));
  EXPECT_THAT(read_csv("text,label\na,pos\nb,neg\n").classes, ElementsAre("neg", "pos"));
  EXPECT_THROW(read_csv("text,label\na,\n"), IoError);
  EXPECT_THROW(read_csv("text\na\n"), IoError);
}

TEST_F(ItemObjectives, ErrorNamesLineOfInvalidLabel) {
  EXPECT_THAT(refusal("{\"text\": \"\", \"label\": 1}\n{\"text\": \"\", \"label\": \"a\"}\n"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("{\"text\": \"\", \"label\": \"a\"}\n{\"text\": \"\", \"label\": 1}\n"), HasSubstr("line 2"));
  EXPECT_THAT(refusal("{\"text\": \"\", \"label\": -1}\n"), HasSubstr("must be a class"));
  EXPECT_THAT(refusal("{\"text\": \"\", \"label\": 1.5}\n"), HasSubstr("must be a class"));
  EXPECT_THAT(refusal("{\"text\": \"\", \"label\": null}\n"), HasSubstr("must be a class"));
  EXPECT_THAT(refusal("{\"text\": \"\", \"label\": 1000000000}\n"),
              HasSubstr("an integer from 0 to 1048575; got 1000000000"));
  EXPECT_THAT(refusal("{\"text\": \"\", \"class\": 1}\n"),
              HasSubstr("line 1 has no \"label\"; its keys are: text, class"));
  EXPECT_THAT(refusal("\n"), HasSubstr("no items"));
}

TEST_F(ItemObjectives, FillEncoderAndDecoderRowsFromTextPairs) {
  Items items = read("{\"source\": \"abcd\", \"target\": \"xy\"}\n{\"source\": \"e\", \"target\": \"uvwz\"}\n",
                     {.text_key = "source", .target_key = "target"});
  auto objective =
      make_pairs(items, {.T = 4, .T_decoder = 3, .order = SampleOrder::sequential, .eos = 256, .decoder_start = 9});
  Batch batch;
  fill_batch(*objective, 0, 2, batch);
  EXPECT_THAT(batch.inputs, ElementsAre('a', 'b', 'c', 256, 'e', 256, 0, 0));
  EXPECT_THAT(batch.lengths, ElementsAre(4, 2));
  EXPECT_THAT(batch.targets, ElementsAre('x', 'y', 256, 'u', 'v', 256));
  EXPECT_THAT(batch.decoder_inputs, ElementsAre(9, 'x', 'y', 9, 'u', 'v'));
  EXPECT_EQ(batch.counted, 6);
}

TEST(SyntheticClassification, MatchesLectureDataSet) {
  auto objective = make_synthetic_classification({.seed = 6});
  EXPECT_EQ(objective->samples_per_epoch(), 10000u);
  EXPECT_EQ(objective->num_classes(), 2);
  Batch batch;
  batch.reshape(2, objective->shape());
  objective->fill_item(17, 0, batch);
  objective->fill_item(18, 1, batch);
  EXPECT_EQ(batch.shape.T, 128);
  EXPECT_THAT(batch.targets, ElementsAre(0, 0));
  EXPECT_THAT(batch.lengths, ElementsAre(128, 128));
  EXPECT_NE(row(batch.inputs, 0, 128), row(batch.inputs, 1, 128));
  double sum = 0;
  for (int32_t id : batch.inputs) {
    ASSERT_TRUE(id >= 0 && id < 30522);
    sum += id;
  }
  EXPECT_NEAR(sum / 256, 15261, 1700);  // tolerance: three standard errors of the mean
  expect_rows_depend_on_the_sample_alone(*objective);
}

}  // namespace
}  // namespace esp::data
