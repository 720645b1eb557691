// Tests every parser with inputs nested a million levels deep, on a stack of 64 KiB, and with inputs of a million
// items. The test prints the times. With ESPALIER_TEST_LONG=1 it also requires that they are linear in the number of
// items. The environment variable PARSER_ITEMS sets another number of items.
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "tests/parsers/parsers.h"

namespace esp {
namespace {

constexpr size_t kLevels = 1'000'000;

size_t num_items() {
  const char* given = std::getenv("PARSER_ITEMS");
  return given ? std::stoul(given) : 1'000'000;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
constexpr size_t kStackBytes = size_t{512} << 10;  // with sanitizers functions need larger stack frames (red zones)
#else
constexpr bool kSanitized = false;
constexpr size_t kStackBytes = size_t{64} << 10;
#endif

// Limit on the CPU time of an input with ten times as many items: kMaxGrowth times the time, plus kSlack_s. A linear
// parser takes 10 to 36 times as long, because the larger input does not fit into the caches; a quadratic one 100
// times.
constexpr double kMaxGrowth = 40, kSlack_s = 0.05;
constexpr int kTrials = 3;  // the shortest time counts
constexpr double kMaxSafetensors_s = 1;

bool measures_time() {
  const char* given = std::getenv("ESPALIER_TEST_LONG");
  return !kSanitized && given && std::string_view(given) == "1";
}

struct Call {
  const Parser* parser;
  std::string_view input;
  std::string message = {};  // error message of the parser; empty: it accepted the input
  double seconds = 0;        // CPU time of the parsing thread
};

void* parse_in_thread(void* argument) {
  Call& call = *static_cast<Call*>(argument);
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begun = now();
  try {
    call.parser->parse(call.input);
  } catch (const Error& error) {
    call.message = error.what();
  }
  call.seconds = now() - begun;
  return nullptr;
}

Call parse_on_small_stack(const Parser& parser, std::string_view input) {
  Call call{&parser, input};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_t thread;
  if (pthread_attr_setstacksize(&attributes, kStackBytes) != 0 ||
      pthread_create(&thread, &attributes, parse_in_thread, &call) != 0)
    ADD_FAILURE() << "no thread with a stack of " << kStackBytes << " bytes";
  else
    pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return call;
}

std::string times(std::string_view text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

struct Nesting {
  std::string_view open, innermost, close;
  std::string at(size_t levels) const { return times(open, levels) + std::string(innermost) + times(close, levels); }
};
constexpr Nesting kNestings[] = {{"[", "", "]"},
                                 {R"({"a":)", "1", "}"},
                                 {R"([{"a":)", "1", "}]"},
                                 {R"({"type":"Sequence","processors":[)", "", "]}"},
                                 {R"({"type":"Sequence","normalizers":[)", "", "]}"},
                                 {"(", "", ")"},
                                 {"a.", "a = 1", ""},
                                 {"{a=", "1", "}"}};

class Depth : public testing::TestWithParam<Parser> {};

TEST_P(Depth, DeepInputDoesNotOverflowSmallStack) {
  const Parser& parser = GetParam();
  std::vector<std::string_view> prefixes = parser.prefixes;
  for (const std::string_view prefix : {"", "a = ", "["}) prefixes.push_back(prefix);
  for (const Nesting& nesting : kNestings)
    for (const std::string_view prefix : prefixes)
      for (const size_t levels : {size_t{8}, size_t{15}, size_t{31}, kLevels}) {
        const std::string input = std::string(prefix) + nesting.at(levels);
        parse_on_small_stack(parser, input);
      }
}

class Size : public testing::TestWithParam<Parser> {};

double shortest_time(const Parser& parser, std::string_view input) {
  double shortest = parse_on_small_stack(parser, input).seconds;
  for (int i = 1; i < kTrials; ++i) shortest = std::min(shortest, parse_on_small_stack(parser, input).seconds);
  return shortest;
}

void expect_linear_time(const Parser& parser, const Parser::Large& large) {
  const double small_s = shortest_time(parser, large.make(num_items() / 10));
  const double large_s = shortest_time(parser, large.make(num_items()));
  fmt::print("| {} | {} | a tenth of the items {:.3f} s | all {:.3f} s |\n", parser.target, large.what, small_s,
             large_s);
  EXPECT_LE(large_s, kMaxGrowth * small_s + kSlack_s);
  if (parser.target == "safetensors") {
    EXPECT_LE(large_s, kMaxSafetensors_s);
  }
}

TEST_P(Size, ParsesAMillionItems) {
  const Parser& parser = GetParam();
  for (const Parser::Large& large : parser.large) {
    SCOPED_TRACE(std::string(large.what));
    const std::string input = large.make(num_items());
    const auto [of, text, message, seconds] = parse_on_small_stack(parser, input);
    fmt::print("| {} | {} | {:.1f} MB | {:.2f} s |\n", parser.target, large.what,
               1e-6 * static_cast<double>(text.size()), seconds);
    if (large.limit.empty())
      EXPECT_EQ(message, "");
    else
      EXPECT_NE(message.find(large.limit), std::string::npos) << message.substr(0, 200);
    if (measures_time()) expect_linear_time(parser, large);
  }
}

std::string name_of(const testing::TestParamInfo<Parser>& info) {
  return std::string(info.param.target);
}
std::vector<Parser> with_large_inputs() {
  std::vector<Parser> some;
  for (const Parser& parser : parsers())
    if (!parser.large.empty()) some.push_back(parser);
  return some;
}
INSTANTIATE_TEST_SUITE_P(Parsers, Depth, testing::ValuesIn(parsers()), name_of);
INSTANTIATE_TEST_SUITE_P(Parsers, Size, testing::ValuesIn(with_large_inputs()), name_of);

TEST(Parsers, TableNamesEveryFuzzTarget) {
  std::set<std::string> listed, fuzzed;
  for (const Parser& parser : parsers()) listed.insert(std::string(parser.target) + "_fuzz");
  for (const auto& entry : std::filesystem::directory_iterator(ESP_FUZZ_SEEDS))
    fuzzed.insert(entry.path().filename().string());
  EXPECT_EQ(listed, fuzzed);
}

}  // namespace
}  // namespace esp
