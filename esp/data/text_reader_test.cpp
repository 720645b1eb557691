#include "esp/data/text_reader.h"

#include <zlib.h>
#include <zstd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

using obs::TemporaryFolder;
using testing::HasSubstr;

std::string gzipped(std::string_view text) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstandard(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string random_text(size_t bytes, uint64_t seed) {
  std::string text(bytes, ' ');
  for (size_t i = 0; i < bytes; ++i) text[i] = "abc \n.,/\xC3\xA9"[random_bits(seed, 0, i) % 10];
  return text;
}

std::string drain(ByteStream& stream, size_t at_once) {
  std::string all, some(at_once, '\0');
  for (size_t n; (n = stream.read(some)) > 0;) all.append(some, 0, n);
  return all;
}

std::string io_error(auto call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no IoError";
}

// 300 MB of one letter compress to 10 kB of zstd.
TEST(ByteStream, RejectsDecompressionBomb) {
  const std::string packed = zstandard(std::string(size_t{300} << 20, 'a'));
  ASSERT_LT(packed.size(), size_t{64} << 10);
  const auto stream = make_byte_stream(packed, Compression::zstd, "bomb.zst");
  std::string out(size_t{1} << 20, '\0');
  size_t total = 0;
  try {
    while (const size_t got = stream->read(out)) total += got;
    ADD_FAILURE() << total;
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cannot decompress bomb.zst: its first"));
    EXPECT_THAT(error.what(), testing::HasSubstr("expected at most 1100 per byte"));
  }
  EXPECT_LT(total, kFreeDecompressedBytes + kMaxDecompressedRatio * packed.size());
}

TEST(ByteStream, RoundTripsCompressedBytes) {
  const std::string text = random_text(3'000'000, 1);
  for (auto [packed, kind] : {std::pair(gzipped(text), Compression::gzip), {zstandard(text), Compression::zstd}}) {
    EXPECT_EQ(drain(*make_byte_stream(packed, kind, "x"), 70001), text);
    auto skipping = make_byte_stream(packed, kind, "x");
    skipping->skip(2'999'990);
    EXPECT_EQ(drain(*skipping, 3), text.substr(2'999'990));
  }
}

TEST(ByteStream, ReadsConcatenatedMembersAndFrames) {
  std::string zeros(5, '\0');
  EXPECT_EQ(drain(*make_byte_stream(gzipped("ab") + gzipped("") + gzipped("c") + zeros, Compression::gzip, "x"), 2),
            "abc");
  EXPECT_EQ(drain(*make_byte_stream(zstandard("ab") + zstandard("") + zstandard("c"), Compression::zstd, "x"), 2),
            "abc");
  EXPECT_EQ(drain(*make_byte_stream(gzipped(""), Compression::gzip, "x"), 2), "");
}

TEST(ByteStream, ErrorNamesDamagedFile) {
  const std::string text = random_text(100'000, 2);
  for (auto [packed, kind] : {std::pair(gzipped(text), Compression::gzip), {zstandard(text), Compression::zstd}}) {
    auto message = [&, kind = kind](std::string bytes) {
      return io_error([&] { drain(*make_byte_stream(bytes, kind, "c.jsonl.gz"), 1000); });
    };
    EXPECT_THAT(message(packed.substr(0, packed.size() / 2)), HasSubstr("c.jsonl.gz: it is not complete"));
    EXPECT_THAT(message(packed.substr(0, packed.size() - 1)), HasSubstr("it is not complete"));
    EXPECT_THAT(message("no compressed data at all"), HasSubstr("cannot decompress c.jsonl.gz"));
    EXPECT_THAT(message(packed + "garbage"), HasSubstr("cannot decompress"));
    EXPECT_THAT(message(""), HasSubstr("cannot decompress"));
    std::string flipped = packed;
    flipped[packed.size() - 6] ^= 0x55;  // for gzip, this byte is in the checksum
    if (kind == Compression::gzip) {
      EXPECT_THAT(message(flipped), HasSubstr("cannot decompress"));
    }
  }
}

TEST(ByteStream, EnforcesSizeLimit) {
  const std::string bomb = gzipped(std::string(50'000'000, 'a'));
  ASSERT_LT(bomb.size(), 100'000u);
  EXPECT_THAT(io_error([&] { drain(*make_byte_stream(bomb, Compression::gzip, "x", 1'000'000), 4096); }),
              HasSubstr("more than 1000000 bytes"));
}

TEST(LineReader, CountsLinesAndBytes) {
  LineReader lines(make_byte_stream("\xEF\xBB\xBF{1}\r\n\n  \n{22}\n{3}", Compression::none, "x"), "x", 100);
  std::string_view line;
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "{1}");
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "{22}");
  EXPECT_EQ(lines.location(), "x, line 4");
  EXPECT_EQ(lines.offset(), 17u);
  ASSERT_TRUE(lines.next(line));
  EXPECT_EQ(line, "{3}");
  EXPECT_FALSE(lines.next(line));
}

TEST(LineReader, RejectsLineBeyondLimit) {
  for (size_t length : {size_t{101}, size_t{5'000'000}}) {
    std::string text = "short\n" + std::string(length, 'x');
    LineReader lines(make_byte_stream(text, Compression::none, "x"), "x", 100);
    std::string_view line;
    ASSERT_TRUE(lines.next(line));
    EXPECT_THAT(io_error([&] { lines.next(line); }), HasSubstr("x, line 2 is longer than 100 bytes"));
  }
}

TEST(JsonLineParser, ReadsRequestedKeysOfOutermostObject) {
  JsonLineParser json({"text", "label"});
  json.parse(R"({"text": "a\u00e9\n", "deep": {"text": "no", "x": [1, {"label": 3}]}, "label": 7})", "here");
  EXPECT_EQ(json.text(0, "here"), "a\xC3\xA9\n");
  EXPECT_EQ(std::get<int64_t>(json[1]), 7);
  json.parse(R"({"label": true})", "here");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(json[0]));
  EXPECT_TRUE(std::get<bool>(json[1]));
}

TEST(JsonLineParser, DescribesErrors) {
  JsonLineParser json({"text"});
  auto message = [&](std::string line) { return io_error([&] { json.parse(line, "c.jsonl, line 3"); }); };
  EXPECT_THAT(message("{\"text\": }"), HasSubstr("c.jsonl, line 3: invalid JSON at column 10"));
  EXPECT_THAT(message("[1]"), HasSubstr("array"));
  EXPECT_THAT(message("17"), HasSubstr("got a value; expected an object"));
  EXPECT_THAT(message("\"text\""), HasSubstr("got a value; expected an object"));
  json.parse("{\"text\": null}", "c.jsonl, line 3");
  EXPECT_THAT(io_error([&] { json.text(0, "c.jsonl, line 3"); }),
              HasSubstr("line 3: \"text\" is null; expected a string"));
  EXPECT_THAT(message("{} {}"), HasSubstr("invalid JSON"));
  EXPECT_THAT(message("{\"text\": \"a\", \"text\": \"b\"}"), HasSubstr("\"text\" twice"));
  EXPECT_THAT(message("{\"text\": \"\xFF\"}"), HasSubstr("invalid JSON"));
  std::string deep = "{\"a\": ";
  for (int i = 0; i < 40; ++i) deep += "[";
  EXPECT_THAT(message(deep), HasSubstr("nested deeper than 32"));
  json.parse(R"({"text": 5})", "here");
  EXPECT_THAT(io_error([&] { json.text(0, "here"); }), HasSubstr("not a string"));
}

TEST(FindChunkCut, PrefersLineStartsThenSpaces) {
  EXPECT_EQ(find_cut("one\ntwo\nthree", 9), 8u);
  EXPECT_EQ(find_cut("one two\n\n/ab", 9), 9u);   // a slash may join the line end before it, but there is no better cut
  EXPECT_EQ(find_cut("aaaa bbbb cccc", 12), 9u);  // cut before the second space
  EXPECT_EQ(find_cut("aaaaaaaa\xC3\xA9", 9), 8u);  // cut before the two-byte character, not inside it
  EXPECT_EQ(find_cut(std::string(10, '\x80'), 9), 6u);
}

struct TextReaderTest : testing::Test {
  TemporaryFolder folder;
  std::vector<Input> inputs;
  void SetUp() override {
    text = random_text(50'000, 3);
    obs::write_whole_file(folder / "a.txt", text);
    obs::write_whole_file(folder / "b.jsonl.zst", zstandard("{\"text\": \"x\"}\n{\"text\": \"\"}\n{\"text\": \"z\"}"));
    obs::write_whole_file(folder / "c.txt", "");
    obs::write_whole_file(folder / "d.txt.gz", gzipped(text));
    obs::write_whole_file(folder / "e.csv", "text\n\"one, \n two\"\nthree\n");
    obs::write_whole_file(folder / "f.json", "[{\"text\": \"four\"}]");
    inputs = {{folder / "a.txt", InputKind::text}, {folder / "b.jsonl.zst", InputKind::jsonl},
              {folder / "c.txt", InputKind::text}, {folder / "d.txt.gz", InputKind::text},
              {folder / "e.csv", InputKind::csv},  {folder / "f.json", InputKind::json}};
  }
  std::string text;
  TextReaderOptions options{.chunk_bytes = 4096};
};

TEST_F(TextReaderTest, ChunksConcatenateToDocuments) {
  TextReader reader(inputs, options);
  std::vector<std::string> documents(1);
  for (TextChunk piece; reader.next(piece);) {
    EXPECT_LE(piece.text.size(), 4096u);
    documents.back() += piece.text;
    if (piece.ends_document) documents.emplace_back();
  }
  ASSERT_EQ(documents.size(), 9u);
  EXPECT_EQ(documents[0], text);
  EXPECT_EQ(documents[1], "x");
  EXPECT_EQ(documents[2], "");
  EXPECT_EQ(documents[3], "z");
  EXPECT_EQ(documents[4], text);
  EXPECT_EQ(documents[5], "one, \n two");
  EXPECT_EQ(documents[7], "four");
}

TEST_F(TextReaderTest, ResumesAfterEveryChunk) {
  std::vector<TextChunk> pieces;
  TextReader reader(inputs, options);
  for (TextChunk piece; reader.next(piece);) pieces.push_back(piece);
  ASSERT_GT(pieces.size(), 25u);
  for (size_t stop = 0; stop < pieces.size(); ++stop) {
    TextReader again(inputs, options, pieces[stop].after);
    TextChunk piece;
    for (size_t i = stop + 1; i < pieces.size(); ++i) {
      ASSERT_TRUE(again.next(piece));
      ASSERT_EQ(piece.text, pieces[i].text) << stop << " " << i;
      ASSERT_EQ(piece.after, pieces[i].after);
      ASSERT_EQ(piece.ends_document, pieces[i].ends_document);
    }
    ASSERT_FALSE(again.next(piece));
  }
}

}  // namespace
}  // namespace esp::data
