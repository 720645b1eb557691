#include "esp/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/data/file_lock.h"
#include "esp/data/token_file.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

struct SimulatedKill {};  // simulates a killed process: prepare() does not catch it

struct Prepare : testing::Test {
  obs::TemporaryFolder folder;
  std::unique_ptr<Tokenizer> bytes = make_byte_tokenizer();

  void SetUp() override {
    std::string text, lines;
    for (uint64_t i = 0; i < 40'000; ++i) text += "abcd ef\n.,"[random_bits(1, 1, i) % 10];
    for (uint64_t i = 0; i < 700; ++i) lines += "{\"text\": \"" + std::string(random_bits(2, 2, i) % 90, 'x') + "\"}\n";
    obs::write_whole_file(folder / "a.txt", text);
    obs::write_whole_file(folder / "b.jsonl", lines);
    obs::write_whole_file(folder / "c.txt", text);
  }

  PrepareOptions options(int threads = 1) {
    PrepareOptions how;
    how.inputs = {{folder / "a.txt", InputKind::text},
                  {folder / "b.jsonl", InputKind::jsonl},
                  {folder / "c.txt", InputKind::text}};
    how.reader.chunk_bytes = 500;
    how.batch_bytes = 2000;
    how.checkpoint_bytes = 5000;
    how.threads = threads;
    return how;
  }

  std::string contents(const std::vector<std::string>& paths) {
    std::string all;
    for (const std::string& path : paths) {
      std::string bytes_of = obs::read_whole_file(path, 1 << 24);
      all += std::filesystem::path(path).extension().string() + std::to_string(bytes_of.size()) + "\n" + bytes_of;
    }
    return all;
  }

  // Runs prepare() again and again. Each attempt is killed after `batches` batches, until one attempt finishes.
  std::string killed_and_resumed(const WriterOptions& writer, int batches, int threads) {
    for (int deaths = 0;; ++deaths) {
      PrepareOptions how = options(threads);
      int seen = 0;
      how.on_progress = [&](const PrepareResult&) {
        if (++seen > batches) throw SimulatedKill();
      };
      try {
        PrepareResult prepared = prepare(how, writer, *bytes);
        EXPECT_GT(deaths, 2);
        return contents(prepared.outputs);
      } catch (const SimulatedKill&) {
        if (deaths > 100) throw;
      }
    }
  }
};

TEST_F(Prepare, ResumedRunWritesIdenticalOutput) {
  for (const char* format : {"bin", "llmc", "megatron"}) {
    WriterOptions straight{format, folder / (std::string(format) + "-straight"), TokenType::u16, 17'000};
    WriterOptions resumed{format, folder / (std::string(format) + "-resumed"), TokenType::u16, 17'000};
    PrepareResult whole = prepare(options(), straight, *bytes);
    EXPECT_EQ(whole.documents, 702u);
    EXPECT_EQ(whole.max_id, 256);
    // Any six batches contain a progress record, so every attempt starts later than the one before.
    EXPECT_EQ(killed_and_resumed(resumed, 6, 2), contents(whole.outputs)) << format;
    for (const auto& entry : std::filesystem::directory_iterator(folder / ".")) {
      EXPECT_FALSE(entry.path().string().ends_with(".partial")) << entry.path();
      EXPECT_FALSE(entry.path().string().ends_with(".progress.json")) << entry.path();
      EXPECT_FALSE(entry.path().string().ends_with(".lock")) << entry.path();
    }
  }
}

TEST_F(Prepare, SecondRunReusesOutput) {
  WriterOptions writer{.output = folder / "o.bin"};
  EXPECT_FALSE(prepare(options(), writer, *bytes).already_complete);
  PrepareResult again = prepare(options(), writer, *bytes);
  EXPECT_TRUE(again.already_complete);
  EXPECT_EQ(again.outputs, std::vector<std::string>{folder / "o.bin"});
  EXPECT_EQ(again.tokens * 2, std::filesystem::file_size(folder / "o.bin"));
  std::filesystem::remove(folder / "o.bin");
  EXPECT_FALSE(prepare(options(), writer, *bytes).already_complete);
}

TEST_F(Prepare, RewritesTruncatedFile) {
  WriterOptions writer{.output = folder / "o.bin"};
  const uint64_t size = 2 * prepare(options(), writer, *bytes).tokens;
  std::filesystem::resize_file(folder / "o.bin", 100);
  EXPECT_FALSE(prepare(options(), writer, *bytes).already_complete);
  EXPECT_EQ(std::filesystem::file_size(folder / "o.bin"), size);
}

TEST_F(Prepare, RewritesFileWithChangedContent) {
  for (const char* format : {"bin", "llmc", "megatron"}) {
    WriterOptions writer{.format = format, .output = folder / format};
    const PrepareResult first = prepare(options(), writer, *bytes);
    const auto before = contents(first.outputs);
    const std::string& changed = first.outputs.back();
    std::fstream(changed, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(std::filesystem::file_size(changed) / 2))
        .put('\x7f');
    EXPECT_NE(contents(first.outputs), before);
    EXPECT_FALSE(prepare(options(), writer, *bytes).already_complete) << format;
    EXPECT_EQ(contents(first.outputs), before) << format;
  }
}

TEST_F(Prepare, LeavesNoFilesWhenFailingBeforeProgress) {
  obs::write_whole_file(folder / "empty.txt", "");
  obs::write_whole_file(folder / "bad.jsonl", "{\"text\": \"a\"}\n{\n");
  std::filesystem::create_directories(folder / "out");
  for (const char* format : {"bin", "llmc", "megatron"})
    for (const Input& input :
         {Input{folder / "empty.txt", InputKind::text}, Input{folder / "bad.jsonl", InputKind::jsonl}}) {
      PrepareOptions how;
      how.inputs = {input};
      EXPECT_THROW(prepare(how, {.format = format, .output = folder / "out/o"}, *bytes), IoError);
      EXPECT_TRUE(std::filesystem::is_empty(folder / "out")) << format << " " << input.path;
    }
}

TEST_F(Prepare, RestartsWhenOptionsChangeAndRemovesOldShards) {
  WriterOptions writer{"llmc", folder / "o", TokenType::u16, 10'000};
  PrepareResult many = prepare(options(), writer, *bytes);
  ASSERT_GT(many.outputs.size(), 5u);
  writer.shard_tokens = 50'000;
  PrepareResult few = prepare(options(), writer, *bytes);
  EXPECT_LT(few.outputs.size(), many.outputs.size());
  EXPECT_FALSE(std::filesystem::exists(many.outputs.back()));
}

TEST_F(Prepare, PlacesSeparatorsAsRequested) {
  auto ends = [&](SeparatorPlacement separator) {
    PrepareOptions how = options();
    how.separator = separator;
    std::vector<int32_t> tokens;
    PrepareResult prepared = tokenize(how, *bytes, *make_memory_writer(tokens, 1 << 24));
    EXPECT_EQ(prepared.tokens, tokens.size());
    return std::pair(std::count(tokens.begin(), tokens.end(), 256), tokens.back() == 256);
  };
  EXPECT_EQ(ends(SeparatorPlacement::none), std::pair(0l, false));
  EXPECT_EQ(ends(SeparatorPlacement::between), std::pair(701l, false));
  EXPECT_EQ(ends(SeparatorPlacement::after), std::pair(702l, true));
}

TEST_F(Prepare, WritesEqualTokensWithAnyNumberOfThreads) {
  std::vector<int32_t> one, four;
  tokenize(options(1), *bytes, *make_memory_writer(one, 1 << 24));
  tokenize(options(4), *bytes, *make_memory_writer(four, 1 << 24));
  EXPECT_EQ(one, four);
}

TEST_F(Prepare, ReportsDamagedProgressFile) {
  WriterOptions writer{.output = folder / "o.bin"};
  std::string key = prepare_key(options(), writer, *bytes);
  obs::write_whole_file(folder / "o.bin.progress.json", "{\"key\": \"" + key + "\", \"tokens\": 5}");
  EXPECT_THROW(prepare(options(), writer, *bytes), IoError);
  obs::write_whole_file(folder / "o.bin.progress.json", "{\"key\": \"other\", \"tokens\": 5}");
  EXPECT_NO_THROW(prepare(options(), writer, *bytes));
}

TEST_F(Prepare, FailsWhileLockIsHeld) {
  WriterOptions writer{.output = folder / "o.bin"};
  FileLock held(folder / "o.bin.lock", Deadline::after_ms(0));
  EXPECT_THROW(prepare(options(), writer, *bytes), IoError);
}

TEST_F(Prepare, KeyDependsOnInputsTokenizerAndOptions) {
  WriterOptions writer{.output = folder / "o.bin"};
  std::string key = prepare_key(options(), writer, *bytes);
  EXPECT_EQ(prepare_key(options(3), writer, *bytes), key);
  PrepareOptions other = options();
  other.reader.text_key = "body";
  EXPECT_NE(prepare_key(other, writer, *bytes), key);
  other = options();
  std::swap(other.inputs[0], other.inputs[2]);
  EXPECT_NE(prepare_key(other, writer, *bytes), key);
  obs::write_whole_file(folder / "a.txt", "changed");
  EXPECT_NE(prepare_key(options(), writer, *bytes), key);
}

TEST(FileLock, AllowsOneHolder) {
  obs::TemporaryFolder folder;
  std::atomic<int> inside = 0, most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int turn = 0; turn < 5; ++turn) {
        FileLock lock(folder / "lock", Deadline::after(std::chrono::minutes(1)));
        most = std::max<int>(most, ++inside);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --inside;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "lock"));
}

}  // namespace
}  // namespace esp::data
