#include "esp/data/source.h"

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "esp/base/error.h"
#include "esp/data/inputs.h"
#include "esp/data/prepare.h"
#include "esp/data/token_file.h"
#include "esp/data/token_writer.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

using obs::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<int32_t> all(const TokenSource& source) {
  std::vector<int32_t> tokens(source.size());
  source.read(0, tokens);
  return tokens;
}

std::vector<int32_t> counting(int32_t from, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

template <typename Call>
std::string io_error(Call call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no IoError";
}

void write_tokens(const WriterOptions& options, const std::vector<std::vector<int32_t>>& documents) {
  auto writer = make_writer(options);
  for (const auto& document : documents) {
    writer->append(document);
    writer->end_document();
  }
  writer->finish();
  writer->clean_up();
}

class ChangedFile : public testing::Test {
 protected:
  ChangedFile() {
    obs::write_whole_file(path_, std::string(100'000, 'a'));
    source_ = open_source({.paths = {path_}}, *make_byte_tokenizer());
  }
  std::string refusal(uint64_t first) {
    std::vector<int32_t> tokens(10);
    try {
      source_.read(first, tokens);
    } catch (const obs::FileChanged& error) {
      return error.what();
    }
    return "read";
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "text.txt";
  TokenSource source_;
};

TEST_F(ChangedFile, RejectsTruncatedFile) {
  EXPECT_EQ(refusal(90'000), "read");
  std::filesystem::resize_file(path_, 50'000);
  EXPECT_THAT(refusal(90'000), AllOf(HasSubstr(path_), HasSubstr("got 50000 bytes; expected 100000")));
  EXPECT_THAT(refusal(0), HasSubstr("got 50000 bytes"));
}

TEST_F(ChangedFile, RejectsFileTruncatedThenExtended) {
  std::filesystem::resize_file(path_, 4096);
  EXPECT_NE(refusal(90'000), "read");
  std::filesystem::resize_file(path_, 100'000);
  EXPECT_THAT(refusal(90'000), HasSubstr("was truncated"));
}

TEST_F(ChangedFile, AcceptsNewModificationTimeWithEqualContent) {
  std::filesystem::last_write_time(path_, std::filesystem::file_time_type::min());
  EXPECT_EQ(refusal(0), "read");
  EXPECT_EQ(refusal(90'000), "read");
}

// Writes one byte in place and sets a new modification time.
void overwrite_byte(const std::string& path, int64_t at, char value) {
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(at).put(value);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::min());
}

TEST_F(ChangedFile, RejectsOneChangedByteAnywhere) {
  overwrite_byte(path_, 40'000, 'b');
  EXPECT_THAT(refusal(0), AllOf(HasSubstr(path_), HasSubstr("content differs")));
}

TEST_F(ChangedFile, RejectsNewModificationTimeOfFileTooLargeToCompare) {
  obs::write_whole_file(path_, std::string(MappedFile::kMaxHashedBytes + 1, 'a'));
  source_ = open_source({.paths = {path_}}, *make_byte_tokenizer());
  EXPECT_EQ(refusal(0), "read");
  overwrite_byte(path_, 7'777'777, 'b');
  EXPECT_THAT(refusal(0), AllOf(HasSubstr(path_), HasSubstr("too large to compare")));
}

TEST_F(ChangedFile, KeepsMappingWhenFileIsReplaced) {
  obs::write_whole_file(path_, "short");
  EXPECT_EQ(refusal(90'000), "read");
  std::filesystem::remove(path_);
  EXPECT_EQ(refusal(90'000), "read");
}

TEST(TokenSource, ReadsTokensAcrossSegments) {
  TokenSource source;
  source.add(counting(0, 5), "a");
  TokenSource more;
  more.add(counting(100, 3), "b");
  source.append(std::move(more), 7);
  EXPECT_THAT(all(source), ElementsAre(0, 1, 2, 3, 4, 7, 100, 101, 102));
  std::vector<int32_t> part(4);
  source.read(4, part);
  EXPECT_THAT(part, ElementsAre(4, 7, 100, 101));
  EXPECT_EQ(source.at(8), 102);
  EXPECT_EQ(source.location(7), "b, token 1");
  EXPECT_EQ(source.max_id(), 102);
  EXPECT_THROW(source.read(8, part), InternalError);
}

TEST(TokenSource, TruncatesToPrefix) {
  TokenSource source;
  source.add(counting(0, 5), "a");
  TokenSource more;
  more.add(counting(100, 3), "b");
  source.append(std::move(more), std::nullopt);
  source.truncate(6);
  EXPECT_THAT(all(source), ElementsAre(0, 1, 2, 3, 4, 100));
  source.truncate(5);
  source.truncate(2);
  EXPECT_THAT(all(source), ElementsAre(0, 1));
}

TEST(TokenType, ParsesLongAndShortNames) {
  EXPECT_EQ(parse_token_type("uint16"), TokenType::u16);
  EXPECT_EQ(parse_token_type("u32"), TokenType::u32);
  EXPECT_THROW(parse_token_type("float"), UsageError);
}

TEST(TokenSource, ErrorNamesPositionOfIdOutsideVocabulary) {
  TemporaryFolder folder;
  write_tokens({.output = folder / "a.bin"}, {counting(0, 300)});
  TokenSource source = open_raw(folder / "a.bin", TokenType::u16);
  source.set_vocab(256);
  std::vector<int32_t> part(100);
  EXPECT_NO_THROW(source.read(156, part));
  EXPECT_THAT(io_error([&] { source.read(200, part); }), HasSubstr("a.bin, token 256 has id 256"));
}

TEST(TokenSource, RejectsNegativeIds) {
  TemporaryFolder folder;
  const int32_t words[] = {1, -2, 3};
  obs::write_whole_file(folder / "a.bin", {reinterpret_cast<const char*>(words), sizeof words});
  TokenSource source = open_raw(folder / "a.bin", TokenType::i32);
  EXPECT_THAT(io_error([&] { all(source); }), HasSubstr("token 1 has id -2"));
  const int64_t wide[] = {1, int64_t{1} << 40};
  obs::write_whole_file(folder / "b.bin", {reinterpret_cast<const char*>(wide), sizeof wide});
  TokenSource wider = open_raw(folder / "b.bin", TokenType::i64);
  EXPECT_THAT(io_error([&] { all(wider); }), HasSubstr("token 1 has id 1099511627776"));
}

TEST(RawFile, RejectsTextAndOtherFileFormats) {
  using namespace std::string_literals;
  TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  const auto refused = [&](std::string_view bytes, TokenType type = TokenType::u16) {
    obs::write_whole_file(path, bytes);
    return io_error([&] { open_raw(path, type); });
  };
  const std::string rest(1000, '\x07');
  const std::pair<std::string, const char*> formats[] = {
      {"\x1F\x8B\x08"s, "got gzip data"},
      {"PK\x03\x04----archive/data.pkl"s, "got a PyTorch file"},
      {"\x93NUMPY\1\0"s, "got a NumPy array"},
      {"PAR1"s, "got a Parquet file"},
      {"\x28\xB5\x2F\xFD"s, "got zstd data"},
      {"\x80\0\0\0\0\0\0\0{\"a"s, "got a safetensors model"},
      {"version https://git-lfs.github.com/spec/v1\n"s, "got a Git LFS pointer"}};
  for (const auto& [magic, what] : formats)
    EXPECT_THAT(refused((magic + rest).substr(0, 1000)), AllOf(HasSubstr(what), HasSubstr("expected token ids")));
  // the suggested command does not overwrite its own input
  EXPECT_THAT(refused("\x93NUMPY\1\0" + rest), HasSubstr("tofile('" + (folder / "a.converted.bin") + "')"));
  std::string text;
  while (text.size() < 600) text += "the lazy dog. ";
  EXPECT_THAT(refused(text.substr(0, 600)), AllOf(HasSubstr("got text"), HasSubstr("espalier data prepare")));
  EXPECT_EQ(refused(text.substr(0, 600), TokenType::u8), "no IoError");  // as u8, every byte is an id
  EXPECT_EQ(refused("the\n"), "no IoError");                             // too few bytes to tell text from ids
}

TEST(RawFile, RejectsIdsWiderThanTokenType) {
  TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  std::vector<uint32_t> words;
  for (uint32_t i = 0; i < 100; ++i) words.push_back(300 + 700 * i);  // some ids exceed 65535
  std::vector<uint64_t> wide(words.begin(), words.end());
  obs::write_whole_file(path, {reinterpret_cast<const char*>(words.data()), 4 * words.size()});
  EXPECT_THAT(io_error([&] { open_raw(path, TokenType::u16); }),
              AllOf(HasSubstr("as if uint32 ids were read as uint16"), HasSubstr("data.bin_type = \"u32\"")));
  EXPECT_EQ(open_raw(path, TokenType::u32).size(), 100);
  obs::write_whole_file(path, {reinterpret_cast<const char*>(wide.data()), 8 * wide.size()});
  EXPECT_THAT(io_error([&] { open_raw(path, TokenType::u32); }), HasSubstr("as if int64 ids were read as uint32"));
  std::vector<uint16_t> narrow(200, 3);  // small ids at every position do not indicate a wider type
  obs::write_whole_file(path, {reinterpret_cast<const char*>(narrow.data()), 2 * narrow.size()});
  EXPECT_EQ(open_raw(path, TokenType::u16).size(), 200);
}

TEST(RawFile, RejectsUint16IdsReadAsUint8) {
  TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  std::vector<uint16_t> ids(200);
  std::iota(ids.begin(), ids.end(), uint16_t{40});
  obs::write_whole_file(path, {reinterpret_cast<const char*>(ids.data()), 2 * ids.size()});
  EXPECT_THAT(io_error([&] { open_raw(path, TokenType::u8); }),
              AllOf(HasSubstr("as if uint16 ids were read as uint8"), HasSubstr("data.bin_type = \"u16\"")));
  EXPECT_EQ(open_raw(path, TokenType::u16).size(), 200);
  obs::write_whole_file(path, std::string(200, '\0'));
  EXPECT_EQ(open_raw(path, TokenType::u8).size(), 200);
}

TEST(RawFile, RejectsPipeAsMetadata) {
  TemporaryFolder folder;
  obs::write_whole_file(folder / "a.bin", std::string(200, '\1'));
  ASSERT_EQ(mkfifo((folder / "a.bin.json").c_str(), 0600), 0);
  EXPECT_THAT(io_error([&] { open_raw(folder / "a.bin", TokenType::u16); }), HasSubstr("a.bin.json: got a pipe"));
}

TEST(RawFile, RoundTripsTokensOfBothWidths) {
  TemporaryFolder folder;
  write_tokens({.output = folder / "a.bin", .type = TokenType::u16}, {{0, 1, 65535}, {7}});
  EXPECT_THAT(all(open_raw(folder / "a.bin", TokenType::u16)), ElementsAre(0, 1, 65535, 7));
  write_tokens({.output = folder / "b.bin", .type = TokenType::u32}, {{0, 70000, 2000000000}});
  EXPECT_THAT(all(open_raw(folder / "b.bin", TokenType::u32)), ElementsAre(0, 70000, 2000000000));
  EXPECT_THAT(io_error([&] { write_tokens({.output = folder / "c.bin"}, {{65536}}); }), HasSubstr("65536"));
  EXPECT_FALSE(std::filesystem::exists(folder / "c.bin"));
}

TEST(RawFile, RejectsPartialToken) {
  EXPECT_THAT(io_error([] { raw_layout(7, TokenType::u16, "x.bin"); }), HasSubstr("x.bin has 7 bytes"));
  EXPECT_THAT(io_error([] { raw_layout(0, TokenType::u16, "x.bin"); }), HasSubstr("empty"));
}

TEST(RawFile, RejectsLlmcModelWeights) {
  TemporaryFolder folder;
  std::vector<int32_t> words(512, 7);
  words[0] = 20240326;
  obs::write_whole_file(folder / "gpt2.bin", {reinterpret_cast<const char*>(words.data()), 2048});
  EXPECT_THAT(io_error([&] { open_raw(folder / "gpt2.bin", TokenType::u16); }), HasSubstr("weights of an llm.c model"));
}

TEST(LlmcShards, SplitTokensAtShardSizeAndRoundTrip) {
  TemporaryFolder folder;
  for (TokenType type : {TokenType::u16, TokenType::u32}) {
    write_tokens({"llmc", folder / "s.bin", type, 1000}, {counting(0, 1500), counting(1500, 1000)});
    auto shard = [&](int i) { return open_llmc(folder / ("s_00000" + std::to_string(i) + ".bin")); };
    EXPECT_EQ(all(shard(0)), counting(0, 1000));
    EXPECT_EQ(all(shard(1)), counting(1000, 1000));
    EXPECT_EQ(all(shard(2)), counting(2000, 500));
    EXPECT_FALSE(std::filesystem::exists(folder / "s_000003.bin"));
  }
}

TEST(LlmcShards, RejectInconsistentHeader) {
  auto with = [](std::vector<int32_t> words, size_t tokens) {
    words.resize(256);
    std::string bytes(reinterpret_cast<const char*>(words.data()), 1024);
    bytes.resize(1024 + 2 * tokens);
    return io_error([&] { read_llmc_header(std::as_bytes(std::span(bytes)), "s.bin"); });
  };
  EXPECT_EQ(with({20240520, 1, 3}, 3), "no IoError");
  EXPECT_THAT(with({20240520, 2, 3}, 3), HasSubstr("version 2"));
  EXPECT_THAT(with({20240520, 1, 4}, 3), HasSubstr("1032 bytes; the file has 1030"));
  EXPECT_THAT(with({20240520, 1, 2}, 3), HasSubstr("the file has"));
  EXPECT_THAT(with({20240520, 1, -1}, 3), HasSubstr("-1 tokens"));
  EXPECT_THAT(with({20240521, 1, 3}, 3), HasSubstr("not an llm.c shard"));
  EXPECT_THAT(with({20240801, 7, 3}, 3), HasSubstr("1036 bytes"));
  EXPECT_THAT(io_error([] { read_llmc_header({}, "s.bin"); }), HasSubstr("0 bytes"));
}

TEST(Megatron, RoundTripsDocuments) {
  TemporaryFolder folder;
  for (TokenType type : {TokenType::u16, TokenType::i32}) {
    write_tokens({"megatron", folder / "m", type}, {counting(0, 5), {}, counting(50, 3)});
    TokenSource source = open_megatron(folder / "m.bin");
    EXPECT_THAT(all(source), ElementsAre(0, 1, 2, 3, 4, 50, 51, 52));
    ASSERT_EQ(source.num_documents(), 3u);
    EXPECT_EQ(source.document(1).count, 0u);
    EXPECT_EQ(source.document(2).first, 5u);
    EXPECT_EQ(source.document(2).count, 3u);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "m.lengths.partial"));
}

TEST(Megatron, FollowsNonContiguousOffsets) {
  TemporaryFolder folder;
  write_tokens({"megatron", folder / "m"}, {counting(0, 4), counting(10, 2)});
  std::string idx = obs::read_whole_file(folder / "m.idx", 1000);
  const int64_t pointers[] = {4, 0};  // byte offsets: the first sequence now begins at token 2
  idx.replace(34 + 8, 16, reinterpret_cast<const char*>(pointers), 16);
  obs::write_whole_file(folder / "m.idx", idx);
  TokenSource source = open_megatron(folder / "m");
  EXPECT_THAT(all(source), ElementsAre(2, 3, 10, 11, 0, 1));
  EXPECT_EQ(source.document(1).first, 4u);
}

TEST(Megatron, RejectsIndexOutOfBounds) {
  TemporaryFolder folder;
  write_tokens({"megatron", folder / "m"}, {counting(0, 4), counting(10, 2)});
  const std::string good = obs::read_whole_file(folder / "m.idx", 1000);
  auto with = [&](size_t at, auto value) {
    std::string idx = good;
    idx.replace(at, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
    return io_error([&] { MegatronIndex(std::as_bytes(std::span(idx)), 12, "m.idx"); });
  };
  EXPECT_EQ(with(9, int64_t{1}), "no IoError");
  EXPECT_THAT(with(0, 'X'), HasSubstr("MMIDIDX"));
  EXPECT_THAT(with(9, int64_t{2}), HasSubstr("version 2"));
  EXPECT_THAT(with(17, uint8_t{7}), HasSubstr("type code 7"));
  EXPECT_THAT(with(18, uint64_t{1} << 62), HasSubstr("too few"));
  EXPECT_THAT(with(26, uint64_t{0}), HasSubstr("too few"));
  EXPECT_THAT(with(26, uint64_t{2}), HasSubstr("after its header"));
  EXPECT_THAT(with(34, int32_t{-1}), HasSubstr("sequence 0 has -1 tokens"));
  EXPECT_THAT(with(34, int32_t{7}), HasSubstr("sequence 0 has 7 tokens"));
  EXPECT_THAT(with(42 + 8, int64_t{10}), HasSubstr("sequence 1"));
  EXPECT_THAT(with(42 + 8, int64_t{-2}), HasSubstr("at byte -2"));
  EXPECT_THAT(with(58, int64_t{1}), HasSubstr("document entry 0"));
  EXPECT_THAT(with(58 + 8, int64_t{3}), HasSubstr("document entry 1"));
  EXPECT_THAT(with(58 + 16, int64_t{1}), HasSubstr("document entry 2"));
  EXPECT_THAT(io_error([&] { MegatronIndex(std::as_bytes(std::span(good)), 11, "m.idx"); }), HasSubstr("sequence 1"));
}

TEST(Megatron, RejectsTruncatedIndexAndLongerBin) {
  TemporaryFolder folder;
  write_tokens({"megatron", folder / "m"}, {counting(0, 4), counting(10, 2)});
  const std::string idx = obs::read_whole_file(folder / "m.idx", 1000);
  obs::write_whole_file(folder / "m.idx", idx.substr(0, 30));
  EXPECT_THAT(io_error([&] { open_megatron(folder / "m"); }), HasSubstr("m.idx: got 30 bytes; expected at least 34"));
  obs::write_whole_file(folder / "m.idx", idx);
  std::filesystem::resize_file(folder / "m.bin", 212);
  EXPECT_THAT(io_error([&] { open_megatron(folder / "m"); }),
              HasSubstr("end at byte 12 of the .bin; the .bin has 212 bytes"));
}

struct OpenSource : testing::Test {
  TemporaryFolder folder;
  std::unique_ptr<Tokenizer> bytes = make_byte_tokenizer();
  std::string decoded(const SourceOptions& options) { return bytes->decode(all(open_source(options, *bytes))); }
};

TEST_F(OpenSource, MapsTextBytesDirectly) {
  obs::write_whole_file(folder / "a.txt", "ab");
  obs::write_whole_file(folder / "b.txt", "");
  const std::string stray = "\xFF" + std::string(2000, 'z');  // invalid bytes, few enough to be text
  obs::write_whole_file(folder / "c.txt", stray);
  EXPECT_EQ(decoded({.paths = {folder / "*.txt"}}), "ab<|endoftext|>" + stray);
  EXPECT_EQ(decoded({.paths = {folder / "*.txt"}, .separate = false}), "ab" + stray);
  EXPECT_EQ(decoded({.paths = {folder / "a.txt"}}), "ab");
}

TEST_F(OpenSource, ReadsFolderInOrderWithoutHiddenAndBinaryFiles) {
  std::filesystem::create_directories(folder / "t/sub");
  std::filesystem::create_directories(folder / "t/.git");
  obs::write_whole_file(folder / "t/sub/b.md", "B");
  obs::write_whole_file(folder / "t/a.cpp", "A");
  obs::write_whole_file(folder / "t/z.txt", "Z");
  obs::write_whole_file(folder / "t/.hidden", "H");
  obs::write_whole_file(folder / "t/.git/x", "G");
  obs::write_whole_file(folder / "t/image", std::string("\x89PNG\0", 5));
  EXPECT_EQ(decoded({.paths = {folder / "t"}, .separate = false}), "ABZ");
}

TEST_F(OpenSource, WarnsOnceAboutSkippedFiles) {
  std::filesystem::create_directories(folder / "t/sub");
  obs::write_whole_file(folder / "t/a.txt", "A");
  obs::write_whole_file(folder / "t/sub/image", std::string("\x89PNG\r\n\x1A\n\0", 9));
  obs::write_whole_file(folder / "t/sub/later.dat", std::string(5000, 'x') + std::string(5000, '\0'));
  std::filesystem::create_symlink("nowhere", folder / "t/gone.txt");
  testing::internal::CaptureStderr();
  EXPECT_EQ(decoded({.paths = {folder / "t"}}), "A");
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_THAT(logged,
              AllOf(HasSubstr("3 of 4 files are not text and are not read: "), HasSubstr("t/gone.txt (a broken"),
                    HasSubstr("t/sub/image (a PNG image)"), HasSubstr("t/sub/later.dat (a binary file")));
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 1);
  std::filesystem::remove(folder / "t/a.txt");
  EXPECT_THAT(io_error([&] { decoded({.paths = {folder / "t"}}); }),
              AllOf(HasSubstr("got no text below it, but "), HasSubstr("a PNG image")));
}

TEST_F(OpenSource, RejectsFolderInOtherFormat) {
  std::filesystem::create_directories(folder / "saved/train");
  obs::write_whole_file(folder / "saved/dataset_dict.json", R"({"splits": ["train"]})");
  obs::write_whole_file(folder / "saved/train/state.json", "{}");
  obs::write_whole_file(folder / "saved/train/dataset_info.json", "{}");
  EXPECT_THAT(io_error([&] { decoded({.paths = {folder / "saved"}}); }),
              AllOf(HasSubstr("got a folder saved by Hugging Face datasets"), HasSubstr("['train'].to_json('")));
  EXPECT_THAT(
      io_error([&] { decoded({.paths = {folder / "saved/train"}}); }),
      AllOf(HasSubstr("load_from_disk('" + (folder / "saved/train") + "').to_json('"), Not(HasSubstr("['train']."))));
  std::filesystem::create_directories(folder / "hub/data");
  obs::write_whole_file(folder / "hub/README.md", "About");
  obs::write_whole_file(folder / "hub/data/a.parquet", std::string("PAR1\0\xFF\xFE", 7));
  EXPECT_THAT(io_error([&] { decoded({.paths = {folder / "hub"}}); }), HasSubstr("a.parquet: got a Parquet file"));
}

TEST_F(OpenSource, FollowsLinksToFoldersOnce) {
  std::filesystem::create_directories(folder / "real");
  std::filesystem::create_directories(folder / "t");
  obs::write_whole_file(folder / "real/a.txt", "A");
  std::filesystem::create_directory_symlink(folder / "real", folder / "t/link");
  std::filesystem::create_directory_symlink(folder / "t", folder / "real/loop");
  EXPECT_EQ(decoded({.paths = {folder / "t"}}), "A");
}

TEST_F(OpenSource, DistinguishesJsonArrayFromJsonLinesByContent) {
  obs::write_whole_file(folder / "array.json", "\xEF\xBB\xBF[\n {\"text\": \"one\"},\n {\"text\": \"two\"}]");
  obs::write_whole_file(folder / "lines.json", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  obs::write_whole_file(folder / "value.json", "{\n \"data\": [{\"text\": \"one\"}]\n}\n");
  obs::write_whole_file(folder / "array.jsonl", "[{\"text\": \"one\"}]");
  EXPECT_EQ(decoded({.paths = {folder / "array.json"}}), "one<|endoftext|>two");
  EXPECT_EQ(decoded({.paths = {folder / "lines.json"}}), "one<|endoftext|>two");
  EXPECT_EQ(decoded({.paths = {folder / "array.jsonl"}}), "one");
  EXPECT_THAT(io_error([&] { decoded({.paths = {folder / "value.json"}}); }),
              AllOf(HasSubstr("value.json: got one JSON value over several lines"), HasSubstr("jq -c")));
}

TEST_F(OpenSource, WarnsWhenJsonLinesAreReadAsText) {
  obs::write_whole_file(folder / "a.txt", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  testing::internal::CaptureStderr();
  EXPECT_THAT(decoded({.paths = {folder / "a.txt"}}), HasSubstr("{\"text\""));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("a.txt: its lines are JSON"));
}

TEST_F(OpenSource, ReadsTablesAsRecords) {
  obs::write_whole_file(folder / "a.csv", "id,body\n1,\"one, two\"\n2,three\n");
  obs::write_whole_file(folder / "b.tsv", "body\tid\nfour\t4\n");
  EXPECT_EQ(decoded({.paths = {folder / "a.csv", folder / "b.tsv"}, .text_key = "body"}),
            "one, two<|endoftext|>three<|endoftext|>four");
  EXPECT_THAT(io_error([&] { decoded({.paths = {folder / "a.csv"}}); }),
              HasSubstr("a.csv: has no column \"text\"; its columns are: id, body"));
}

TEST_F(OpenSource, DropsByteOrderMark) {
  obs::write_whole_file(folder / "a.txt", "\xEF\xBB\xBFone");
  obs::write_whole_file(folder / "b.txt", "\xEF\xBB\xBF");
  EXPECT_EQ(decoded({.paths = {folder / "a.txt", folder / "b.txt"}}), "one");
  EXPECT_EQ(decoded({.paths = {folder / "a.txt"}, .allow_special = true}), "one");
}

TEST_F(OpenSource, FindsFilesCommonToTwoInputLists) {
  obs::write_whole_file(folder / "a.txt", "one");
  obs::write_whole_file(folder / "b.txt", "two");
  std::filesystem::create_symlink("a.txt", folder / "c.txt");
  const auto inputs = [&](const char* name) { return find_inputs({folder / name}, "auto"); };
  EXPECT_THAT(common_files(inputs("."), inputs("a.txt")), ElementsAre(folder / "a.txt"));
  EXPECT_THAT(common_files(inputs("a.txt"), inputs("c.txt")), ElementsAre(folder / "c.txt"));
  EXPECT_THAT(common_files(inputs("a.txt"), inputs("b.txt")), ElementsAre());
}

TEST_F(OpenSource, RejectsGitLfsPointer) {
  obs::write_whole_file(folder / "a.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  EXPECT_THAT(io_error([&] { decoded({.paths = {folder / "a.bin"}}); }), HasSubstr("got a Git LFS pointer"));
}

TEST_F(OpenSource, ReadsOnlyTokenFilesOfFolder) {
  std::filesystem::create_directories(folder / "t");
  write_tokens({"llmc", folder / "t/s", TokenType::u16, 2}, {{1, 2, 3}});
  obs::write_whole_file(folder / "t/s.json", "{}");
  EXPECT_THAT(all(open_source({.paths = {folder / "t"}}, *bytes)), ElementsAre(1, 2, 3));
}

TEST_F(OpenSource, ReadsRawTypeFromMetadata) {
  write_tokens({.output = folder / "a.bin", .type = TokenType::u32}, {{1, 2}});
  obs::write_whole_file(folder / "a.bin.json", R"({"type": "uint32"})");
  EXPECT_THAT(all(open_source({.paths = {folder / "a.bin"}}, *bytes)), ElementsAre(1, 2));
  EXPECT_THAT(all(open_source({.paths = {folder / "a.bin"}, .bin_type = TokenType::u16}, *bytes)),
              ElementsAre(1, 0, 2, 0));
}

TEST_F(OpenSource, RejectsRawFileWithOtherSizeThanMetadata) {
  write_tokens({.output = folder / "a.bin"}, {{1, 2}});
  obs::write_whole_file(folder / "a.bin.json", R"({"type": "uint16", "tokens": 3})");
  EXPECT_THAT(io_error([&] { open_source({.paths = {folder / "a.bin"}}, *bytes); }),
              AllOf(HasSubstr("has 4 bytes"), HasSubstr("3 tokens of uint16, which take 6")));
}

// Same kind and vocabulary size as the byte tokenizer, but other ids.
class ReversedByteTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, std::vector<int32_t>& out) const override { encode_ordinary(text, out); }
  void encode_ordinary(std::string_view text, std::vector<int32_t>& out) const override {
    for (char c : text) out.push_back(255 - static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  int32_t vocab_size() const override { return 257; }
  std::optional<int32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::string_view kind() const override { return "byte"; }
  void save(const std::string&) const override {}
};

TEST_F(OpenSource, RejectsTokensOfOtherTokenizer) {
  obs::write_whole_file(folder / "a.txt", "some text");
  PrepareOptions how;
  how.inputs = {{folder / "a.txt", InputKind::text}};
  for (const auto& [format, name, path] : {std::tuple("bin", "raw.bin", "raw.bin"), std::tuple("llmc", "s", "s_*.bin"),
                                           std::tuple("llmc", "s.bin", "s_*.bin"), std::tuple("megatron", "m.bin", "m"),
                                           std::tuple("megatron", "m", "m")}) {
    prepare(how, {.format = format, .output = folder / name}, *bytes);
    EXPECT_EQ(decoded({.paths = {folder / path}}), "some text<|endoftext|>");
    try {
      open_source({.paths = {folder / path}}, ReversedByteTokenizer());
      ADD_FAILURE() << path;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("was made with another tokenizer, byte of 257 ids"));
    }
    std::filesystem::remove(folder / (std::string(name) + ".json"));
    EXPECT_NO_THROW(open_source({.paths = {folder / path}}, ReversedByteTokenizer())) << path;
  }
}

TEST_F(OpenSource, ComparesTokenizerNameAndVocabularySizeWithoutFingerprint) {
  write_tokens({.output = folder / "a.bin"}, {{1, 2}});
  obs::write_whole_file(folder / "a.bin.json", R"({"tokenizer": "byte", "vocab": 257})");
  EXPECT_NO_THROW(open_source({.paths = {folder / "a.bin"}}, *bytes));
  obs::write_whole_file(folder / "a.bin.json", R"({"tokenizer": "bpe", "vocab": 1184})");
  EXPECT_THROW(open_source({.paths = {folder / "a.bin"}}, *bytes), UsageError);
}

TEST_F(OpenSource, ReadsJsonLinesAsDocuments) {
  obs::write_whole_file(folder / "a.jsonl", "{\"text\": \"one\"}\n\n{\"n\": 1, \"text\": \"two\"}\n");
  EXPECT_EQ(decoded({.paths = {folder / "a.jsonl"}}), "one<|endoftext|>two");
  EXPECT_THAT(io_error([&] { decoded({.paths = {folder / "a.jsonl"}, .text_key = "txt"}); }),
              HasSubstr("a.jsonl, line 1 has no \"txt\"; its keys are: text"));
}

TEST_F(OpenSource, RebuildsCacheWhenTextChanges) {
  const std::string cache = folder / "cache";
  SourceOptions options{.paths = {folder / "a.jsonl", folder / "b.txt"}, .cache_dir = cache};
  obs::write_whole_file(folder / "a.jsonl", "{\"text\": \"one\"}\n");
  obs::write_whole_file(folder / "b.txt", "two");
  EXPECT_EQ(decoded(options), "one<|endoftext|>two");
  auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(cache)) names.push_back(entry.path().string());
    return names;
  };
  auto before = files();
  EXPECT_EQ(before.size(), 2u);  // two files: the tokens and their metadata
  EXPECT_EQ(decoded(options), "one<|endoftext|>two");
  EXPECT_EQ(files(), before);
  obs::write_whole_file(folder / "b.txt", "three");
  EXPECT_EQ(decoded(options), "one<|endoftext|>three");
  EXPECT_EQ(files().size(), 4u);
}

TEST_F(OpenSource, ConcurrentOpensBuildOneCache) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "{\"text\": \"line " + std::to_string(i) + "\"}\n";
  obs::write_whole_file(folder / "a.jsonl", lines);
  SourceOptions options{.paths = {folder / "a.jsonl"}, .cache_dir = folder / "cache"};
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts) threads.emplace_back([&] { text = decoded(options); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "cache"), {}), 2);
}

TEST_F(OpenSource, DetectsTokenFileFormats) {
  write_tokens({.output = folder / "raw.bin"}, {{1, 2}});
  write_tokens({"llmc", folder / "shard"}, {{3, 4}});
  write_tokens({"megatron", folder / "pair"}, {{5}, {6}});
  TokenSource source = open_source(
      {.paths = {folder / "raw.bin", folder / "shard_*.bin", folder / "pair.bin", folder / "pair"}}, *bytes);
  EXPECT_THAT(all(source), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(OpenSource, RejectsIdsOutsideVocabularyAtOpen) {
  write_tokens({.output = folder / "raw.bin"}, {{1, 2, 300}});
  EXPECT_THAT(io_error([&] { open_source({.paths = {folder / "raw.bin"}}, *bytes); }),
              HasSubstr("raw.bin, token 2 has id 300, outside the vocabulary of 257"));
  EXPECT_NO_THROW(open_source({.paths = {folder / "raw.bin"}, .vocab = 301}, *bytes));
}

TEST_F(OpenSource, ErrorNamesMissingInput) {
  EXPECT_THAT(io_error([&] { open_source({.paths = {folder / "none.txt"}}, *bytes); }), HasSubstr("none.txt"));
  EXPECT_THAT(io_error([&] { open_source({.paths = {folder / "*.txt"}}, *bytes); }), HasSubstr("no file matches"));
  EXPECT_THAT(io_error([&] { open_source({.paths = {folder / "nope/*.txt"}}, *bytes); }), HasSubstr("no file matches"));
  EXPECT_THROW(open_source({}, *bytes), UsageError);
  EXPECT_THROW(open_source({.paths = {folder / "x"}, .format = "parquet"}, *bytes), UsageError);
}

TEST_F(OpenSource, RejectsLargeTextWithoutCache) {
  obs::write_whole_file(folder / "a.jsonl", "{\"text\": \"" + std::string(1000, 'x') + "\"}\n");
  EXPECT_THAT(io_error([&] { open_source({.paths = {folder / "a.jsonl"}, .max_memory_bytes = 999}, *bytes); }),
              HasSubstr("cache folder"));
}

}  // namespace
}  // namespace esp::data
