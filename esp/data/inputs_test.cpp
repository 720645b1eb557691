#include "esp/data/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "esp/base/error.h"
#include "esp/data/byte_stream.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

struct InputFolder : testing::Test {
  obs::TemporaryFolder folder;
  void write(const std::string& name, std::string_view bytes) {
    std::filesystem::create_directories(std::filesystem::path(folder / name).parent_path());
    obs::write_whole_file(folder / name, bytes);
  }
  std::vector<Input> inputs(const std::string& name) { return find_inputs({folder / name}, "auto"); }
  std::string error_of(const std::string& name) {
    try {
      inputs(name);
    } catch (const IoError& error) {
      return error.what();
    }
    return "no IoError";
  }
};

TEST_F(InputFolder, RejectsArchivesAndCompressedFiles) {
  const std::pair<std::string, std::string> files[] = {
      {"shard.jsonl.xz",
       "\xFD"
       "7zXZ\0\0\4\xE6\xD6\xB4"s},
      {"shard.jsonl.bz2", "BZh91AY&SY\xF0\xF1\xF2"},
      {"shard.jsonl.lz4", "\x04\x22\x4D\x18\x64\x40\xA7\0"s},
      {"shard.jsonl", "\x1F\x8B\x08\0\0\0\0\0\xFF\xFF"s},
      {"shard.txt", "\x28\xB5\x2F\xFD\0\0"s},
      {"shard.tar", std::string(257, 'n') + "ustar\0"s},
      {"shard.zip", "PK\x03\x04\x14\0\0\0a.txt"s},
      {"shard.7z", "\x37\x7A\xBC\xAF\x27\x1C\0\0"s},
      {"shard.rar", "Rar!\x1A\x07\1\0\xFF"s},
      {"shard.txt.gz", "<html>not found</html>"},
  };
  for (const auto& [name, bytes] : files) {
    const std::string at = name + ".d/";
    write(at + "README.md", "About");
    write(at + name, bytes);
    EXPECT_THAT(error_of(at), AllOf(StartsWith(folder / at + name + ": got "), HasSubstr("name the other files")));
  }
}

TEST_F(InputFolder, SkipsOfficeDocuments) {
  write("t/a.txt", "A");
  write("t/b.docx", "PK\x03\x04\x14\0\0\0[Content_Types].xml"s);
  EXPECT_THAT(inputs("t"), ElementsAre(Input{folder / "t/a.txt", InputKind::text}));
}

TEST_F(InputFolder, IgnoresCaseOfExtension) {
  write("a.CSV", "text\na\n");
  write("a.Tsv", "text\na\n");
  write("a.JSON", "[{\"text\": \"a\"}]");
  write("a.JSONL", "{\"text\": \"a\"}\n");
  write("A.BIN", "\1\0"s);
  for (const auto& [name, kind] :
       {std::pair("a.CSV", InputKind::csv), std::pair("a.Tsv", InputKind::tsv), std::pair("a.JSON", InputKind::json),
        std::pair("a.JSONL", InputKind::jsonl), std::pair("A.BIN", InputKind::bin)})
    EXPECT_THAT(inputs(name), ElementsAre(Input{folder / name, kind}));
  EXPECT_EQ(compression_of("a.TXT.GZ"), Compression::gzip);
  EXPECT_EQ(compression_of("a.txt.Zst"), Compression::zstd);
  write("M.IDX", "MMIDIDX");
  EXPECT_THAT(error_of("M.IDX"), HasSubstr("Rename both files"));
}

TEST_F(InputFolder, SkipsRunFoldersBelowCorpus) {
  write("t/a.txt", "A");
  write("t/runs/one/run.lock", "");
  write("t/runs/one/events.txt", "B");
  write("t/runs/two/run.toml", "");
  write("t/runs/two/metrics.jsonl", "{}\n");
  write("t/notes/run.toml", "[data]\n");
  testing::internal::CaptureStderr();
  EXPECT_THAT(inputs("t"), ElementsAre(Input{folder / "t/a.txt", InputKind::text},
                                       Input{folder / "t/notes/run.toml", InputKind::text}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("t/runs/one: a run folder"), HasSubstr("t/runs/two: a run folder")));
  EXPECT_THAT(error_of("t/runs/one"), HasSubstr("got a run folder"));
}

TEST_F(InputFolder, ErrorSaysWhyPathIsMissing) {
  const auto refusal = [](const std::string& path) -> std::string {
    try {
      find_inputs({path}, "auto");
    } catch (const IoError& error) {
      return error.what();
    }
    return "no IoError";
  };
  EXPECT_THAT(refusal(""), HasSubstr("got an empty path"));
  EXPECT_THAT(refusal("~/missing.txt"), AllOf(HasSubstr("no such file or folder: ~/missing.txt"),
                                              HasSubstr("~ is not expanded here. Write the path of the home folder")));
  std::filesystem::create_symlink("gone.txt", folder / "broken");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(refusal(folder / "broken"), HasSubstr("a broken symbolic link to gone.txt"));
  EXPECT_THAT(refusal(folder / "loop"), HasSubstr("a loop of symbolic links"));
  EXPECT_THAT(refusal(folder / "missing"), AllOf(StartsWith("no such file or folder: "), EndsWith("/missing")));
}

TEST_F(InputFolder, WarnsAboutFilesBesideTokenFiles) {
  write("t/a.bin", "\1\0"s);
  write("t/a.bin.json", "{}");
  testing::internal::CaptureStderr();
  EXPECT_THAT(inputs("t"), ElementsAre(Input{folder / "t/a.bin", InputKind::bin}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
  write("t/b.txt", "text");
  write("t/c.jsonl", "{\"text\": \"one\"}\n");
  write("t/d.json", "[]");
  testing::internal::CaptureStderr();
  EXPECT_THAT(inputs("t"), ElementsAre(Input{folder / "t/a.bin", InputKind::bin}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("t: 3 of 5 files are not read, such as "));
}

TEST_F(InputFolder, TreatsJsonFilesInFolderLikeFilesGivenByPath) {
  write("array/a.json", "[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}\n]\n");
  write("list/a.json", "{\n  \"version\": {\"number\": 1},\n  \"data\": [\n    {\"text\": \"one\"}\n  ]\n}\n");
  write("long/a.json", "{\n  \"data\": [\n    {\"text\": \"" + std::string(100'000, 'x') + "\"}\n  ]\n}\n");
  write("settings/a.json", "{\n  \"files\": [\"a\", \"b\"],\n  \"options\": {\"inner\": {\"list\": [{}]}}\n}\n");
  EXPECT_THAT(inputs("array"), ElementsAre(Input{folder / "array/a.json", InputKind::json}));
  EXPECT_EQ(inputs("array"), inputs("array/a.json"));
  for (const char* name : {"list", "long"}) {
    EXPECT_THAT(error_of(name), HasSubstr("got one JSON value over several lines"));
    EXPECT_EQ(error_of(name), error_of(name + "/a.json"s));
  }
  EXPECT_THAT(inputs("settings"), ElementsAre(Input{folder / "settings/a.json", InputKind::text}));
}

}  // namespace
}  // namespace esp::data
