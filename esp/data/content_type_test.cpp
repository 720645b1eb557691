#include "esp/data/content_type.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

using namespace std::string_literals;
using obs::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::string io_error(auto call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no IoError";
}

std::string noise(size_t bytes) {
  std::string all(bytes, ' ');
  for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<char>(random_bits(7, 7, i));
  return all;
}

struct ContentTypeDetection : testing::Test {
  TemporaryFolder folder;
  std::string path(const std::string& name, std::string_view bytes) {
    obs::write_whole_file(folder / name, bytes);
    return folder / name;
  }
  std::string error_of(const std::string& name, std::string_view bytes) {
    const std::string at = path(name, bytes);
    return io_error([&] { require_text(detect_content_type(at), at); });
  }
};

TEST_F(ContentTypeDetection, DetectsFormatFromItsBytes) {
  const std::pair<std::string, const char*> formats[] = {
      {"PAR1"s, "a Parquet file"},
      {"ARROW1\0\0"s, "an Arrow file"},
      {"\xFF\xFF\xFF\xFF"s, "an Arrow stream"},
      {"\x93NUMPY\1\0"s, "a NumPy array"},
      {"PK\x03\x04----archive/data.pkl"s, "a PyTorch file"},
      {"PK\x03\x04----ids.npy"s, "a NumPy archive"},
      {"PK\x03\x04----[Content_Types].xml"s, "an Office document"},
      {"PK\x03\x04----a.txt"s, "a ZIP archive"},
      {"\x80\x02}q\0"s, "a Python pickle"},
      {std::string(257, 'n') + "ustar\0"s, "a tar archive"},
      {"\xFD"
       "7zXZ\0"s,
       "xz data"},
      {"BZh91AY&SY"s, "bzip2 data"},
      {"\x1F\x8B\x08"s, "gzip data"},
      {"\x28\xB5\x2F\xFD"s, "zstd data"},
      {"SQLite format 3\0"s, "an SQLite database"},
      {"%PDF-1.7\n"s, "a PDF document"},
      {"\x89PNG\r\n\x1A\n"s, "a PNG image"},
      {"\xFF\xD8\xFF\xE0"s, "a JPEG image"},
      {"\x7F"
       "ELF\2\1"s,
       "an ELF executable"},
      {"\x90\0\0\0\0\0\0\0{\"a\":"s, "a safetensors model"},
      {"GGUF\3\0\0\0"s, "a GGUF model"},
  };
  for (const auto& [head, what] : formats)
    EXPECT_THAT(error_of("a.txt", head + noise(2000)),
                AllOf(HasSubstr(folder / "a.txt"), HasSubstr("got "s + what), HasSubstr("expected UTF-8 text")))
        << what;
}

// 1 MB of text in a ZIP file without compression: a local header before it, a central directory after it.
std::string stored_zip(const std::string& text) {
  const auto u16 = [](size_t value) { return std::string{static_cast<char>(value), static_cast<char>(value >> 8)}; };
  const auto u32 = [&](size_t value) { return u16(value & 0xFFFF) + u16(value >> 16); };
  const std::string crc = u32(crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<uInt>(text.size())));
  const std::string name = "text.txt";
  const std::string entry = u16(20) + u16(0) + u16(0) + u32(0x58210000) + crc + u32(text.size()) + u32(text.size()) +
                            u16(name.size()) + u16(0);
  const std::string local = "PK\x03\x04" + entry + name + text;
  const std::string central = "PK\x01\x02" + u16(20) + entry + std::string(14, '\0') + name;
  return local + central + "PK\x05\x06" + u32(0) + u16(1) + u16(1) + u32(central.size()) + u32(local.size()) + u16(0);
}

TEST_F(ContentTypeDetection, RejectsZipThatStoresText) {
  EXPECT_THAT(error_of("a.txt", stored_zip(std::string(1 << 20, 'x'))), HasSubstr("got a ZIP archive"));
}

// Uncompressed byte arrays in Parquet: the length of each text (4 bytes, little-endian) precedes it.
TEST_F(ContentTypeDetection, RejectsParquetThatStoresText) {
  const std::string text(5000, 'x'), length = "\x88\x13\0\0"s, footer = "\x15\x04\x19\x2C" + ("\x40\0\0\0PAR1"s);
  std::string texts;
  for (int i = 0; i < 200; ++i) texts += length + text;
  EXPECT_THAT(error_of("a.txt", "PAR1" + texts + footer), HasSubstr("got a Parquet file"));
  // The length of the footer, before the magic number at the end of the file, suffices.
  EXPECT_THAT(error_of("a.txt", "PAR1" + std::string(1 << 20, 'x') + "\x40\0\0\0PAR1"s),
              HasSubstr("got a Parquet file"));
}

TEST_F(ContentTypeDetection, SuggestsCommandForFile) {
  const std::string at = folder / "a";
  EXPECT_THAT(error_of("a.parquet", "PAR1" + noise(100)),
              HasSubstr("Dataset.from_parquet('" + at + ".parquet').to_json('" + at + ".jsonl')"));
  EXPECT_THAT(error_of("a.tar", std::string(257, 'n') + "ustar\0"s), HasSubstr("tar -xf " + at + ".tar -C " + at));
  EXPECT_THAT(error_of("a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"),
              AllOf(HasSubstr("a Git LFS pointer"), HasSubstr("git lfs pull")));
}

TEST_F(ContentTypeDetection, FindsBinaryBytesAnywhereInLargeFile) {
  const std::string text(1 << 20, 'x'), binary = noise(1 << 20);
  EXPECT_THAT(error_of("a.txt", text + binary), HasSubstr("a binary file of unknown format"));
  EXPECT_THAT(error_of("a.txt", text + binary + text), HasSubstr("a binary file of unknown format"));
  EXPECT_THAT(error_of("a.txt", text + text), "no IoError");
}

TEST_F(ContentTypeDetection, AcceptsAndCountsFewInvalidBytes) {
  std::string text(10'000, 'x');
  text[5] = '\xFF';
  text[7] = '\0';
  const ContentType content = detect_content_type(path("a.txt", text));
  EXPECT_TRUE(content.is_text());
  EXPECT_EQ(content.invalid_bytes, 2u);
  EXPECT_THAT(describe_invalid_bytes(content, "a.txt"),
              HasSubstr("a.txt: 2 of 10000 bytes examined are NUL or not UTF-8"));
  for (size_t i = 0; i < 10; ++i) text[100 + i] = '\xFF';
  EXPECT_THAT(error_of("a.txt", text), HasSubstr("12 of 10000 bytes"));
}

TEST_F(ContentTypeDetection, AcceptsCharacterCutBySampleBoundary) {
  std::string text = "a";
  while (text.size() < 3'000'000) text += "\xF0\x9F\x8C\xB3";
  EXPECT_EQ(detect_content_type(path("a.txt", text)).invalid_bytes, 0u);
  EXPECT_EQ(detect_content_type(path("a.txt", text + "\xF0\x9F\x8C")).invalid_bytes, 3u);
}

TEST_F(ContentTypeDetection, RejectsOtherEncodingWithConversionCommand) {
  std::string latin, wide, wide_marked = "\xFF\xFE";
  for (int i = 0; i < 100; ++i) latin += "D\xE9j\xE0 vu, na\xEFve. ";
  for (char c : "some plain words\n"s) wide += {c, '\0'};
  wide_marked += wide;
  EXPECT_THAT(error_of("a.txt", latin),
              AllOf(HasSubstr("text in another encoding"), HasSubstr("iconv -f WINDOWS-1252 -t UTF-8 ")));
  EXPECT_THAT(error_of("a.txt", wide), AllOf(HasSubstr("UTF-16LE text"), HasSubstr("iconv -f UTF-16LE -t UTF-8 ")));
  EXPECT_THAT(error_of("a.txt", wide_marked), HasSubstr("iconv -f UTF-16 -t UTF-8 "));
}

std::string gzip(const TemporaryFolder& folder, std::string_view bytes) {
  const std::string at = folder / "gzip";
  gzFile file = gzopen(at.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return obs::read_whole_file(at, 1 << 20);
}

TEST_F(ContentTypeDetection, SuggestedOutputFileKeepsExtension) {
  std::string latin, wide = "\xFF\xFE";
  for (int i = 0; i < 100; ++i) latin += "D\xE9j\xE0 vu, na\xEFve. ";
  for (char c : "some plain words\n"s) wide += {c, '\0'};
  EXPECT_THAT(error_of("a.csv", latin), HasSubstr("a.csv > " + (folder / "a.utf8.csv")));
  EXPECT_THAT(error_of("a.jsonl", wide), HasSubstr("a.jsonl > " + (folder / "a.utf8.jsonl")));
  EXPECT_THAT(error_of("a", wide), HasSubstr("/a > " + (folder / "a.utf8.txt")));
  const std::string at = folder / "a.txt.gz";
  EXPECT_THAT(error_of("a.txt.gz", gzip(folder, wide)),
              HasSubstr("zcat " + at + " | iconv -f UTF-16 -t UTF-8 > " + (folder / "a.utf8.txt")));
}

TEST_F(ContentTypeDetection, SuggestsCommandForCompressedContent) {
  const std::string inner = gzip(folder, noise(500)), ids(400, '\0'), at = folder / "a.txt.gz";
  EXPECT_THAT(error_of("a.txt.gz", gzip(folder, inner)), HasSubstr("zcat " + at + " | zcat > " + (folder / "a.txt")));
  EXPECT_THAT(error_of("a.txt.gz", gzip(folder, "PK\x03\x04" + noise(500))),
              AllOf(HasSubstr("zcat " + at + " > " + (folder / "a.txt") + ". "),
                    HasSubstr("unzip " + (folder / "a.txt") + " -d " + (folder / "a"))));
  EXPECT_THAT(error_of("a.tgz", inner),
              AllOf(HasSubstr("a compressed tar archive"), HasSubstr("tar -xf " + (folder / "a.tgz"))));
  EXPECT_THAT(error_of("ids.bin.gz", gzip(folder, ids)),
              AllOf(HasSubstr("got a compressed token file"), HasSubstr("cannot be compressed: zcat ")));
}

TEST_F(ContentTypeDetection, SuggestedCommandDoesNotOverwriteInputFile) {
  EXPECT_THAT(error_of("a.jsonl", "PAR1" + noise(100)), HasSubstr("to_json('" + (folder / "a.converted.jsonl")));
  EXPECT_THAT(error_of("a.txt", "%PDF-1.4\n" + noise(100)), HasSubstr("a.txt " + (folder / "a.converted.txt")));
}

TEST_F(ContentTypeDetection, RejectsPickleThatIsMostlyText) {
  const std::string text(20'000, 'x');
  EXPECT_THAT(error_of("a.txt", "\x80\x04\x8C" + text), HasSubstr("got a Python pickle"));
  EXPECT_THAT(error_of("a.txt", "(dp0\nVtext\n" + text + "\n."), HasSubstr("got a Python pickle"));
}

TEST_F(ContentTypeDetection, RejectsUncompressedFileWithCompressedExtension) {
  EXPECT_THAT(error_of("a.txt.gz", "plain words"),
              AllOf(HasSubstr("got data that are not gzip"),
                    HasSubstr("mv " + (folder / "a.txt.gz") + " " + (folder / "a.txt"))));
  EXPECT_THAT(error_of("a.txt.zst", "plain words"), HasSubstr("got data that are not zstd"));
}

TEST_F(ContentTypeDetection, ExaminesDecompressedContent) {
  const auto write = [&](const std::string& name, std::string_view bytes) {
    const std::string at = folder / name;
    gzFile file = gzopen(at.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
    gzclose(file);
    return at;
  };
  EXPECT_TRUE(detect_content_type(write("a.txt.gz", "some text")).is_text());
  EXPECT_EQ(detect_content_type(write("a.tar.gz", std::string(257, 'n') + "ustar\0"s)).what, "a tar archive");
  EXPECT_THAT(detect_content_type(write("b.tar.gz", std::string(257, 'n') + "ustar\0"s)).fix,
              HasSubstr("b.tar.gz -C "));
}

TEST_F(ContentTypeDetection, RejectsPipeAndDeviceWithoutBlocking) {
  const std::string at = folder / "pipe";
  ASSERT_EQ(mkfifo(at.c_str(), 0600), 0);
  EXPECT_THAT(io_error([&] { detect_content_type(at); }), HasSubstr("got a pipe"));
  EXPECT_THAT(io_error([&] { detect_content_type("/dev/zero"); }), HasSubstr("got a device or socket"));
  EXPECT_THAT(io_error([&] { read_text_file("/dev/zero", 1 << 30); }), HasSubstr("got a binary file"));
}

TEST_F(ContentTypeDetection, AcceptsEmptyFileAndPlainText) {
  for (const char* text : {"", "\n", " \t\n", "\xEF\xBB\xBFx", "caf\xC3\xA9", "ORC and BM and MZ", "PK\x03\x04", "PAR1",
                           "PAR1 is the name of a file format"})
    EXPECT_EQ(error_of("a.txt", text), "no IoError") << text;
}

}  // namespace
}  // namespace esp::data
