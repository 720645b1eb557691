// Every parser of the product: inputs nested a million levels deep on a stack of 64 KiB, and inputs of a million items.
// A parser that takes quadratic time needs hours for the latter, and the test's time limit ends it. What each took is
// printed; PARSER_ITEMS is another number of items.
#include <pthread.h>

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
constexpr size_t kStackBytes = size_t{512} << 10;  // frames with red zones
#else
constexpr size_t kStackBytes = size_t{64} << 10;
#endif

struct Call {
  const Parser* parser;
  std::string_view input;
  std::string message = {};  // of the error; empty: accepted
  double seconds = 0;        // of the thread
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

TEST_P(Depth, DoesNotOverflowASmallStack) {
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
