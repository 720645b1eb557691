#include "esp/data/content.h"

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

struct Examined : testing::Test {
  TemporaryFolder folder;
  std::string path(const std::string& name, std::string_view bytes) {
    obs::write_whole_file(folder / name, bytes);
    return folder / name;
  }
  std::string error_of(const std::string& name, std::string_view bytes) {
    const std::string at = path(name, bytes);
    return io_error([&] { require_text(examine_file(at), at); });
  }
};

TEST_F(Examined, FormatsAreNamedByTheirBytesWhateverTheFileIsCalled) {
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

TEST_F(Examined, TheFixIsACommandForTheFile) {
  const std::string at = folder / "a";
  EXPECT_THAT(error_of("a.parquet", "PAR1" + noise(100)),
              HasSubstr("Dataset.from_parquet('" + at + ".parquet').to_json('" + at + ".jsonl')"));
  EXPECT_THAT(error_of("a.tar", std::string(257, 'n') + "ustar\0"s), HasSubstr("tar -xf " + at + ".tar -C " + at));
  EXPECT_THAT(error_of("a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"),
              AllOf(HasSubstr("a Git LFS pointer"), HasSubstr("git lfs pull")));
}

TEST_F(Examined, BinaryBytesAreFoundAnywhereInALargeFile) {
  const std::string text(1 << 20, 'x'), binary = noise(1 << 20);
  EXPECT_THAT(error_of("a.txt", text + binary), HasSubstr("a binary file of a format not known here"));
  EXPECT_THAT(error_of("a.txt", text + binary + text), HasSubstr("a binary file of a format not known here"));
  EXPECT_THAT(error_of("a.txt", text + text), "no IoError");
}

TEST_F(Examined, AFewStrayBytesAreTextAndCounted) {
  std::string text(10'000, 'x');
  text[5] = '\xFF';
  text[7] = '\0';
  const Content content = examine_file(path("a.txt", text));
  EXPECT_TRUE(content.is_text());
  EXPECT_EQ(content.stray_bytes, 2u);
  EXPECT_THAT(describe_stray(content, "a.txt"), HasSubstr("a.txt: 2 of 10000 bytes examined are NUL or not UTF-8"));
  for (size_t i = 0; i < 10; ++i) text[100 + i] = '\xFF';
  EXPECT_THAT(error_of("a.txt", text), HasSubstr("12 of 10000 bytes"));
}

TEST_F(Examined, CharactersAtTheEdgesOfSamplesAreNotStray) {
  std::string text = "a";
  while (text.size() < 3'000'000) text += "\xF0\x9F\x8C\xB3";
  EXPECT_EQ(examine_file(path("a.txt", text)).stray_bytes, 0u);
  EXPECT_EQ(examine_file(path("a.txt", text + "\xF0\x9F\x8C")).stray_bytes, 3u);
}

TEST_F(Examined, OtherEncodingsAreRefusedWithTheCommandThatConverts) {
  std::string latin, wide, wide_marked = "\xFF\xFE";
  for (int i = 0; i < 100; ++i) latin += "D\xE9j\xE0 vu, na\xEFve. ";
  for (char c : "some plain words\n"s) wide += {c, '\0'};
  wide_marked += wide;
  EXPECT_THAT(error_of("a.txt", latin),
              AllOf(HasSubstr("text in another encoding"), HasSubstr("iconv -f WINDOWS-1252 -t UTF-8 ")));
  EXPECT_THAT(error_of("a.txt", wide), AllOf(HasSubstr("UTF-16LE text"), HasSubstr("iconv -f UTF-16LE -t UTF-8 ")));
  EXPECT_THAT(error_of("a.txt", wide_marked), HasSubstr("iconv -f UTF-16 -t UTF-8 "));
}

TEST_F(Examined, APickleIsRefusedHoweverMuchTextItHolds) {
  const std::string text(20'000, 'x');
  EXPECT_THAT(error_of("a.txt", "\x80\x04\x8C" + text), HasSubstr("got a Python pickle"));
  EXPECT_THAT(error_of("a.txt", "(dp0\nVtext\n" + text + "\n."), HasSubstr("got a Python pickle"));
}

TEST_F(Examined, AFileThatIsNotCompressedAsItsNameSaysIsRefused) {
  EXPECT_THAT(error_of("a.txt.gz", "plain words"),
              AllOf(HasSubstr("got data that are not gzip"),
                    HasSubstr("mv " + (folder / "a.txt.gz") + " " + (folder / "a.txt"))));
  EXPECT_THAT(error_of("a.txt.zst", "plain words"), HasSubstr("got data that are not zstd"));
}

TEST_F(Examined, CompressedFilesAreJudgedByWhatTheyHold) {
  const auto write = [&](const std::string& name, std::string_view bytes) {
    const std::string at = folder / name;
    gzFile file = gzopen(at.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
    gzclose(file);
    return at;
  };
  EXPECT_TRUE(examine_file(write("a.txt.gz", "some text")).is_text());
  EXPECT_EQ(examine_file(write("a.tar.gz", std::string(257, 'n') + "ustar\0"s)).what, "a tar archive");
  EXPECT_THAT(examine_file(write("b.tar.gz", std::string(257, 'n') + "ustar\0"s)).fix, HasSubstr("b.tar.gz -C "));
}

TEST_F(Examined, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  const std::string at = folder / "pipe";
  ASSERT_EQ(mkfifo(at.c_str(), 0600), 0);
  EXPECT_THAT(io_error([&] { examine_file(at); }), HasSubstr("got a pipe"));
  EXPECT_THAT(io_error([&] { examine_file("/dev/zero"); }), HasSubstr("got a device or socket"));
  EXPECT_THAT(io_error([&] { read_text_file("/dev/zero", 1 << 30); }), HasSubstr("got a binary file"));
}

TEST_F(Examined, EmptyFilesAndPlainTextsAreText) {
  for (const char* text : {"", "\n", " \t\n", "\xEF\xBB\xBFx", "caf\xC3\xA9", "ORC and BM and MZ", "PK\x03\x04"})
    EXPECT_EQ(error_of("a.txt", text), "no IoError") << text;
}

}  // namespace
}  // namespace esp::data
