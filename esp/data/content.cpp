#include "esp/data/content.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/byte_stream.h"
#include "esp/data/tokenizer/unicode.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

using namespace std::string_view_literals;

constexpr size_t kHeadBytes = size_t{64} << 10;
constexpr size_t kSampleBytes = size_t{16} << 10;
constexpr size_t kSamples = 12;                                       // after the head, evenly to the end
constexpr size_t kWholeBytes = kHeadBytes + kSamples * kSampleBytes;  // a file of this size is examined whole
constexpr std::string_view kExpected =
    "expected UTF-8 text, JSON lines, a JSON array of objects, CSV or TSV (each also as .gz or .zst), or token files "
    "(.bin)";

// A format by the bytes at `offset`. `in_text`: the magic number alone decides; otherwise the file must also hold bytes
// that text does not, more than a few where the magic number is short. `fix` may name {path} and {stem}, the path
// without its last extension.
struct Format {
  std::string_view magic;
  size_t offset;
  std::string_view what, fix;
  bool in_text = false, dataset = false;
};

constexpr std::string_view kUnpackTar = "Unpack it and name the folder: mkdir -p {stem} && tar -xf {path} -C {stem}";
constexpr std::string_view kUseTextFiles = "Name text files in its place.";
constexpr std::string_view kAsJsonLines = "Write its texts as JSON lines: one {{\"text\": \"...\"}} per line.";

constexpr Format kFormats[] = {
    {"version https://git-lfs.github.com/spec/"sv, 0, "a Git LFS pointer, not the file itself",
     "Fetch the file: git lfs pull", true},
    {"%PDF-"sv, 0, "a PDF document", "Extract its text: pdftotext {path} {stem}.txt", true},
    {"{\\rtf"sv, 0, "an RTF document", "Save it as plain text: soffice --headless --convert-to txt:Text {path}", true},
    {"PAR1"sv, 0, "a Parquet file",
     "Convert it: python3 -c \"from datasets import Dataset; Dataset.from_parquet('{path}').to_json('{stem}.jsonl')\"",
     false, true},
    {"ARROW1\0\0"sv, 0, "an Arrow file (Feather)",
     "Convert it: python3 -c \"import pandas; pandas.read_feather('{path}').to_json('{stem}.jsonl', orient='records', "
     "lines=True)\"",
     false, true},
    {"\xFF\xFF\xFF\xFF"sv, 0, "an Arrow stream",
     "Convert it: python3 -c \"from datasets import Dataset; Dataset.from_file('{path}').to_json('{stem}.jsonl')\"",
     false, true},
    {"FEA1"sv, 0, "a Feather file",
     "Convert it: python3 -c \"import pandas; pandas.read_feather('{path}').to_json('{stem}.jsonl', orient='records', "
     "lines=True)\"",
     false, true},
    {"ORC"sv, 0, "an ORC file",
     "Convert it: python3 -c \"import pandas; pandas.read_orc('{path}').to_json('{stem}.jsonl', orient='records', "
     "lines=True)\"",
     false, true},
    {"Obj\x01"sv, 0, "an Avro file", "Convert it: avro-tools tojson {path} > {stem}.jsonl", false, true},
    {"\x93NUMPY"sv, 0, "a NumPy array",
     "If it holds token ids: python3 -c \"import numpy; numpy.load('{path}').astype('uint32').tofile('{stem}.bin')\" "
     "and data.bin_type = \"uint32\"",
     false, true},
    {"\x89HDF\r\n\x1A\n"sv, 0, "an HDF5 file", kAsJsonLines, false, true},
    {"SQLite format 3\0"sv, 0, "an SQLite database",
     "Export its texts: sqlite3 -json {path} \"SELECT text FROM TABLE\" > {stem}.json", false, true},
    {"BZh"sv, 0, "bzip2 data", "Compress it as .zst: bzcat {path} | zstd > {stem}.zst"},
    {"\xFD"
     "7zXZ\0"sv,
     0, "xz data", "Compress it as .zst: xzcat {path} | zstd > {stem}.zst"},
    {"\x04\x22\x4D\x18"sv, 0, "lz4 data", "Compress it as .zst: lz4cat {path} | zstd > {stem}.zst"},
    {"\x1F\x8B\x08"sv, 0, "gzip data that its name does not show", "Rename it: mv {path} {path}.gz"},
    {"\x28\xB5\x2F\xFD"sv, 0, "zstd data that its name does not show", "Rename it: mv {path} {path}.zst"},
    {"\x37\x7A\xBC\xAF\x27\x1C"sv, 0, "a 7-Zip archive", "Unpack it and name the folder: 7z x {path} -o{stem}"},
    {"Rar!\x1A\x07"sv, 0, "a RAR archive", "Unpack it and name the folder: unrar x {path} {stem}/"},
    {"ustar"sv, 257, "a tar archive", kUnpackTar},
    {"PK\x03\x04"sv, 0, "a ZIP archive", "Unpack it and name the folder: unzip {path} -d {stem}"},
    {"PK\x05\x06"sv, 0, "an empty ZIP archive", kUseTextFiles},
    {"\x80\x02"sv, 0, "a Python pickle", kAsJsonLines, true},
    {"\x80\x03"sv, 0, "a Python pickle", kAsJsonLines, true},
    {"\x80\x04"sv, 0, "a Python pickle", kAsJsonLines, true},
    {"\x80\x05"sv, 0, "a Python pickle", kAsJsonLines, true},
    {"(dp0\n"sv, 0, "a Python pickle", kAsJsonLines, true},
    {"(lp0\n"sv, 0, "a Python pickle", kAsJsonLines, true},
    {"GGUF"sv, 0, "a GGUF model", kUseTextFiles},
    {"MMIDIDX\0\0"sv, 0, "a Megatron index without .idx in its name", "Rename the pair to {stem}.idx and {stem}.bin."},
    {"\x89PNG\r\n\x1A\n"sv, 0, "a PNG image", kUseTextFiles},
    {"\xFF\xD8\xFF"sv, 0, "a JPEG image", kUseTextFiles},
    {"GIF8"sv, 0, "a GIF image", kUseTextFiles},
    {"WEBP"sv, 8, "a WebP image", kUseTextFiles},
    {"WAVE"sv, 8, "a WAV recording", kUseTextFiles},
    {"II*\0"sv, 0, "a TIFF image", kUseTextFiles},
    {"MM\0*"sv, 0, "a TIFF image", kUseTextFiles},
    {"\0\0\1\0"sv, 0, "an icon", kUseTextFiles},
    {"BM"sv, 0, "a BMP image", kUseTextFiles},
    {"ftyp"sv, 4, "an MP4 video", kUseTextFiles},
    {"OggS"sv, 0, "an Ogg recording", kUseTextFiles},
    {"fLaC"sv, 0, "a FLAC recording", kUseTextFiles},
    {"ID3"sv, 0, "an MP3 recording", kUseTextFiles},
    {"\x7F"
     "ELF"sv,
     0, "an ELF executable or library", kUseTextFiles},
    {"MZ"sv, 0, "a Windows executable", kUseTextFiles},
    {"\xCF\xFA\xED\xFE"sv, 0, "a Mach-O executable or library", kUseTextFiles},
    {"\xCA\xFE\xBA\xBE"sv, 0, "a Java class or Mach-O executable", kUseTextFiles},
    {"!<arch>\n"sv, 0, "a static library", kUseTextFiles},
    {"\0asm"sv, 0, "a WebAssembly module", kUseTextFiles},
    {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, 0, "an Office document",
     "Save it as plain text: soffice --headless --convert-to txt:Text {path}"},
};

// Counts over all samples.
struct Bytes {
  uint64_t all = 0, nul = 0, invalid = 0, control = 0;
  std::array<uint64_t, 2> nul_at = {};  // even and odd places of the head

  // `begins`, `ends`: the sample begins or ends the file; elsewhere a character may be cut.
  void add(std::string_view text, bool begins, bool ends) {
    size_t at = 0;
    if (!begins)
      while (at < std::min<size_t>(3, text.size()) && (text[at] & 0xC0) == 0x80) ++at;
    all += text.size() - at;
    while (at < text.size()) {
      const auto byte = static_cast<uint8_t>(text[at]);
      if (byte < 0x80) {
        if (byte == 0) {
          ++nul;
          if (begins) ++nul_at[at % 2];
        } else if (byte < 0x20 && !(byte >= '\b' && byte <= '\r') && byte != 0x1B) {
          ++control;
        }
        ++at;
        continue;
      }
      const Point point = read_point(text.data() + at, text.size() - at);
      if (point.value == kNoPoint && !(text.size() - at < 4 && !ends)) ++invalid;
      at += point.bytes;
    }
  }
  uint64_t stray() const { return nul + invalid; }
};

std::string fill_in(std::string_view sentence, const std::string& path) {
  const size_t name = path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1;
  const size_t dot = path.rfind('.');
  std::string stem = dot == path.npos || dot <= name ? path + ".out" : path.substr(0, dot);
  if (stem.ends_with(".tar")) stem.resize(stem.size() - 4);
  return fmt::format(fmt::runtime(sentence), fmt::arg("path", path), fmt::arg("stem", stem));
}

// ZIP is a container of other formats; the names of its first files tell which.
Format zip_format(Format row, std::string_view head) {
  const auto holds = [&](std::string_view name) { return head.find(name) != head.npos; };
  if (holds("/data.pkl")) {
    row.what = "a PyTorch file";
    row.fix =
        "If it is a tensor of token ids: python3 -c \"import torch; "
        "torch.load('{path}').numpy().astype('uint32').tofile('{stem}.bin')\" and data.bin_type = \"uint32\"";
    row.dataset = true;
  } else if (holds(".npy")) {
    row.what = "a NumPy archive (.npz)";
    row.fix =
        "If it holds token ids: python3 -c \"import numpy; "
        "numpy.load('{path}')['NAME'].astype('uint32').tofile('{stem}.bin')\" and data.bin_type = \"uint32\"";
    row.dataset = true;
  } else if (holds("[Content_Types].xml")) {
    row.what = "an Office document";
    row.fix = "Save it as plain text: soffice --headless --convert-to txt:Text {path}";
  } else if (holds("application/epub") || holds("application/vnd.oasis")) {
    row.what = "an EPUB or OpenDocument file";
    row.fix = "Convert it to plain text: pandoc -t plain {path} -o {stem}.txt";
  }
  return row;
}

// A JSON header after its length in 8 bytes, of which the upper four are zero.
bool is_safetensors(std::string_view head) {
  return head.size() > 10 && head.substr(4, 4) == "\0\0\0\0"sv && head.substr(8, 2) == "{\"";
}

// "UTF-16" or "UTF-32", by its mark, or by zeros at every other place.
std::string_view wide_encoding(std::string_view head, const Bytes& bytes) {
  if (head.starts_with("\xFF\xFE\0\0"sv) || head.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (head.starts_with("\xFF\xFE"sv) || head.starts_with("\xFE\xFF"sv)) return "UTF-16";
  const uint64_t most = std::max(bytes.nul_at[0], bytes.nul_at[1]), all = bytes.nul_at[0] + bytes.nul_at[1];
  if (head.size() < 16 || bytes.control > bytes.all / 100 || 5 * all < head.size() || most * 10 < all * 9) return "";
  return bytes.nul_at[0] > bytes.nul_at[1] ? "UTF-16BE" : "UTF-16LE";
}

Content judge(std::string_view head, const Bytes& bytes, const std::string& path) {
  Content content;
  content.examined_bytes = bytes.all;
  content.stray_bytes = bytes.stray();
  const auto is = [&](const Format& row) {
    content.what = row.what;
    content.fix = fill_in(row.fix, path);
    content.dataset = row.dataset;
  };
  const double share = bytes.all == 0 ? 0 : static_cast<double>(bytes.stray()) / static_cast<double>(bytes.all);
  for (const Format& row : kFormats) {
    const bool may_be = row.in_text || share > kMaxStrayShare || (bytes.stray() > 0 && row.magic.size() >= 5);
    if (!may_be || head.size() < row.offset || !head.substr(row.offset).starts_with(row.magic)) continue;
    is(row.magic == "PK\x03\x04"sv ? zip_format(row, head) : row);
    return content;
  }
  if (bytes.stray() > 0 && is_safetensors(head)) {
    is({"", 0, "a safetensors model", kUseTextFiles});
    return content;
  }
  if (share <= kMaxStrayShare) {
    content.head = head;
    return content;
  }
  if (const std::string_view wide = wide_encoding(head, bytes); !wide.empty()) {
    content.what = fmt::format("{} text", wide);
    content.fix = fill_in(fmt::format("Convert it: iconv -f {} -t UTF-8 {{path}} > {{stem}}.utf8.txt", wide), path);
  } else if (bytes.nul > 0 || static_cast<double>(bytes.control) > 0.005 * static_cast<double>(bytes.all)) {
    content.what =
        fmt::format("a binary file of a format not known here ({} of {} bytes examined are NUL or not UTF-8)",
                    bytes.stray(), bytes.all);
    content.fix = "Convert it to text; a file of token ids must be named .bin.";
  } else {
    content.what =
        fmt::format("text in another encoding ({} of {} bytes examined are not UTF-8)", bytes.invalid, bytes.all);
    content.fix = fill_in(share < 0.3 ? "If it is Latin-1, as much European text is: iconv -f WINDOWS-1252 -t UTF-8 "
                                        "{path} > {stem}.utf8.txt"
                                      : "Convert it (`file -i {path}` guesses the encoding): iconv -f ENCODING -t "
                                        "UTF-8 {path} > {stem}.utf8.txt",
                          path);
  }
  return content;
}

Content examine_compressed(const std::string& path) {
  const bool gzip = compression_of(path) == Compression::gzip;
  const std::string head = obs::File(path, O_RDONLY).read(0, 4);
  const bool as_named = gzip ? head.starts_with("\x1F\x8B"sv)
                             : head == "\x28\xB5\x2F\xFD"sv || (head.size() == 4 && head.substr(1) == "\x2A\x4D\x18"sv);
  if (!as_named && !head.empty()) {
    Content content;
    content.what = fmt::format("data that are not {}, as the name says", gzip ? "gzip" : "zstd");
    content.fix = fill_in("If it is text: mv {path} {stem}", path);
    return content;
  }
  std::string text(kWholeBytes, '\0');
  const auto stream = open_byte_stream(path);
  text.resize(stream->read(text));
  Bytes bytes;
  bytes.add(text, true, text.size() < kWholeBytes);
  return judge(std::string_view(text).substr(0, kHeadBytes), bytes, path);
}

void require_regular(const obs::File& file) {
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) file.fail("cannot stat");
  if (S_ISREG(info.st_mode)) return;
  if (S_ISFIFO(info.st_mode))
    throw IoError(
        fmt::format("{}: got a pipe, which can be read only once; expected a regular file. Write the data to one "
                    "first: cat {} > data.txt",
                    file.path(), file.path()));
  throw IoError(fmt::format("{}: got a {}; expected a regular file", file.path(),
                            S_ISDIR(info.st_mode) ? "folder" : "device or socket"));
}

}  // namespace

Content examine_file(const std::string& path) {
  // A pipe without a writer must not block the opening.
  const obs::File file(path, O_RDONLY | O_NONBLOCK);
  require_regular(file);
  if (compression_of(path) != Compression::none) return examine_compressed(path);
  Bytes bytes;
  const uint64_t size = file.size();
  if (size <= kWholeBytes) {
    const std::string all = file.read(0, kWholeBytes);
    bytes.add(all, true, true);
    return judge(std::string_view(all).substr(0, kHeadBytes), bytes, path);
  }
  const std::string head = file.read(0, kHeadBytes);
  bytes.add(head, true, false);
  const uint64_t last = size - kSampleBytes;
  for (uint64_t i = 1; i <= kSamples; ++i) {
    const uint64_t at = kHeadBytes + (last - kHeadBytes) * i / kSamples;
    bytes.add(file.read(at, kSampleBytes), false, i == kSamples);
  }
  return judge(head, bytes, path);
}

Content examine_bytes(std::string_view text, const std::string& path) {
  Bytes bytes;
  bytes.add(text, true, true);
  return judge(text.substr(0, kHeadBytes), bytes, path);
}

void require_text(const Content& content, std::string_view path) {
  if (!content.is_text()) throw IoError(fmt::format("{}: got {}; {}. {}", path, content.what, kExpected, content.fix));
}

void require_token_ids(const std::string& path) {
  // Any bytes may be token ids: a magic number counts where ids hardly begin a file like this.
  constexpr uint64_t kMinTextBytes = 64;
  const auto is_long = [](std::string_view magic) {
    return magic.size() >= 6 || (magic.size() >= 4 && magic.find('\0') == magic.npos && magic[0] != '\xFF') ||
           magic == "\x1F\x8B\x08"sv;
  };
  const obs::File file(path, O_RDONLY | O_NONBLOCK);
  require_regular(file);
  const std::string head = file.read(0, kHeadBytes);
  Bytes bytes;
  bytes.add(head, true, head.size() < kHeadBytes);
  Content content;
  for (const Format& row : kFormats)
    if (is_long(row.magic) && head.size() >= row.offset &&
        std::string_view(head).substr(row.offset).starts_with(row.magic)) {
      const Format found = row.magic == "PK\x03\x04"sv ? zip_format(row, head) : row;
      content.what = found.what;
      content.fix = fill_in(found.fix, path);
      // The result must not replace what it is made from.
      if (const std::string same = "tofile('" + path + "')"; content.fix.find(same) != content.fix.npos)
        content.fix.replace(content.fix.find(same), same.size(), "tofile('" + path + ".ids.bin')");
      break;
    }
  if (content.is_text() && is_safetensors(head))
    content.what = "a safetensors model", content.fix = fill_in("Name its token ids in its place.", path);
  if (content.is_text() && bytes.all >= kMinTextBytes && bytes.stray() == 0 && bytes.control == 0) {
    content.what = "text";
    content.fix = fill_in("Rename it: mv {path} {stem}.txt. `espalier data prepare` makes token ids of it.", path);
  }
  if (!content.is_text())
    throw IoError(fmt::format("{}: got {}; expected token ids, as its name says. {}", path, content.what, content.fix));
}

std::string describe_stray(const Content& content, std::string_view path) {
  if (!content.is_text() || content.stray_bytes == 0) return {};
  return fmt::format("{}: {} of {} bytes examined are NUL or not UTF-8; they are kept as they are", path,
                     content.stray_bytes, content.examined_bytes);
}

std::string read_text_file(const std::string& path, size_t max_bytes, bool any_bytes) {
  const auto stream = open_byte_stream(path, max_bytes);
  std::string text;
  for (size_t got = 1; got > 0;) {
    const size_t have = text.size();
    if (have > max_bytes)
      throw IoError(fmt::format("{}: got more than {} bytes; expected at most that", path, max_bytes));
    text.resize(std::max<size_t>(2 * have, size_t{1} << 16));
    got = stream->read(std::span(text).subspan(have));
    text.resize(have + got);
    if (have == 0 && !any_bytes) require_text(examine_bytes(text, path), path);  // an endless device ends here
  }
  if (!any_bytes) require_text(examine_bytes(text, path), path);
  return text;
}

bool is_utf8(std::string_view text) {
  Bytes bytes;
  bytes.add(text, true, true);
  return bytes.invalid == 0;
}

}  // namespace esp::data
