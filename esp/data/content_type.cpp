#include "esp/data/content_type.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
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
constexpr size_t kSamples = 12;  // samples after the head, spread evenly up to the end of the file
// a file of at most this size is examined completely
constexpr size_t kWholeBytes = kHeadBytes + kSamples * kSampleBytes;
constexpr std::string_view kExpected =
    "expected UTF-8 text, JSON lines, a JSON array of objects, CSV or TSV (each also as .gz or .zst), or token files "
    "(.bin)";

// A file format, recognised by the magic number at `offset`. If `in_text` is set, the magic number alone decides.
// Otherwise the file must also contain bytes that are not UTF-8 text: one is enough after a magic number of kLongMagic
// bytes (Parquet and ZIP may store text uncompressed), a share above kMaxInvalidShare after a shorter one. `fix` may
// contain {path}, and {stem} for the path without its last extension.
constexpr size_t kLongMagic = 4;
struct FormatRow {
  std::string_view magic;
  size_t offset;
  std::string_view what, fix;
  bool in_text = false, dataset = false;
};

constexpr std::string_view kUnpackTar = "Unpack it and name the folder: mkdir -p {stem} && tar -xf {path} -C {stem}";
constexpr std::string_view kUseTextFiles = "Give text files instead.";
constexpr std::string_view kAsJsonLines = "Write its texts as JSON lines: one {{\"text\": \"...\"}} per line.";

constexpr FormatRow kFormats[] = {
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
    {"BZh"sv, 0, "bzip2 data", "Compress it as .zst: bzcat {path} | zstd > {stem}.zst", false, true},
    {"\xFD"
     "7zXZ\0"sv,
     0, "xz data", "Compress it as .zst: xzcat {path} | zstd > {stem}.zst", false, true},
    {"\x04\x22\x4D\x18"sv, 0, "lz4 data", "Compress it as .zst: lz4cat {path} | zstd > {stem}.zst", false, true},
    {"\x1F\x8B\x08"sv, 0, "gzip data without .gz in the file name", "Rename it: mv {path} {path}.gz", false, true},
    {"\x28\xB5\x2F\xFD"sv, 0, "zstd data without .zst in the file name", "Rename it: mv {path} {path}.zst", false,
     true},
    {"\x37\x7A\xBC\xAF\x27\x1C"sv, 0, "a 7-Zip archive", "Unpack it and name the folder: 7z x {path} -o{stem}", false,
     true},
    {"Rar!\x1A\x07"sv, 0, "a RAR archive", "Unpack it and name the folder: unrar x {path} {stem}/", false, true},
    {"ustar"sv, 257, "a tar archive", kUnpackTar, false, true},
    {"PK\x03\x04"sv, 0, "a ZIP archive", "Unpack it and name the folder: unzip {path} -d {stem}", false, true},
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

// Byte counts, summed over all samples.
struct ByteCounts {
  uint64_t all = 0, nul = 0, invalid = 0, control = 0;
  std::array<uint64_t, 2> nul_at = {};  // NUL bytes at even and at odd offsets of the head

  // `begins`, `ends`: the sample starts or ends the file. Elsewhere a sample boundary may cut a character.
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
  uint64_t num_invalid() const { return nul + invalid; }
};

// Position of the last extension of the file name; npos if it has none.
size_t extension_begin(const std::string& path) {
  const size_t name = path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1;
  const size_t dot = path.rfind('.');
  return dot == path.npos || dot <= name ? path.npos : dot;
}

std::string expand_placeholders(std::string_view sentence, const std::string& path) {
  const size_t dot = extension_begin(path);
  std::string stem = dot == path.npos ? path + ".out" : path.substr(0, dot);
  if (stem.ends_with(".tar")) stem.resize(stem.size() - 4);
  // The suggested command must not overwrite its own input.
  if (dot != path.npos && stem + path.substr(dot) == path && sentence.find("{stem}.idx") == sentence.npos &&
      sentence.find("{stem}" + path.substr(dot)) != sentence.npos)
    stem += ".converted";
  return fmt::format(fmt::runtime(sentence), fmt::arg("path", path), fmt::arg("stem", stem));
}

std::string without_compression(std::string path) {
  while (compression_of(path) != Compression::none) path.resize(path.rfind('.'));
  return path;
}

std::string_view decompress_command(Compression compression) {
  return compression == Compression::gzip ? "zcat" : "zstdcat";
}

// The converted file keeps the extension of `path`, which says how its records are read: a.csv becomes a.utf8.csv.
std::string iconv_command(std::string_view encoding, const std::string& path) {
  const std::string name = without_compression(path);
  const size_t dot = extension_begin(name);
  const std::string to = name.substr(0, dot) + ".utf8" + (dot == name.npos ? ".txt" : name.substr(dot));
  const Compression compression = compression_of(path);
  if (compression == Compression::none) return fmt::format("iconv -f {} -t UTF-8 {} > {}", encoding, path, to);
  return fmt::format("{} {} | iconv -f {} -t UTF-8 > {}", decompress_command(compression), path, encoding, to);
}

// Compression of a file of this format; none for all but gzip and zstd.
Compression row_compression(const FormatRow& row) {
  if (row.magic == "\x1F\x8B\x08"sv) return Compression::gzip;
  return row.magic == "\x28\xB5\x2F\xFD"sv ? Compression::zstd : Compression::none;
}

bool is_compressed_tar(const std::string& path) {
  constexpr std::string_view kExtensions[] = {".tgz", ".tbz2", ".tbz", ".txz", ".tzst"};
  return std::any_of(std::begin(kExtensions), std::end(kExtensions),
                     [&](std::string_view extension) { return has_extension(path, extension); });
}

// The fix for a file named .gz or .zst whose decompressed content is `row`.
std::string fix_of_compressed(const FormatRow& row, const std::string& path) {
  const bool by_path = row.fix.find("{path}") != row.fix.npos;
  if (!by_path || row.fix == kUnpackTar) return expand_placeholders(row.fix, path);  // tar decompresses by itself
  const std::string to = without_compression(path);
  const std::string decompress = fmt::format("{} {}", decompress_command(compression_of(path)), path);
  if (const Compression inner = row_compression(row); inner != Compression::none)
    return fmt::format("It is compressed twice: {} | {} > {}", decompress, decompress_command(inner), to);
  return fmt::format("Decompress it: {} > {}. {}", decompress, to, expand_placeholders(row.fix, to));
}

// ZIP is a container of other formats. The names of its first entries identify the format.
FormatRow zip_format(FormatRow row, std::string_view head) {
  const auto holds = [&](std::string_view name) { return head.find(name) != head.npos; };
  if (holds("/data.pkl")) {
    row.what = "a PyTorch file";
    row.fix =
        "If it is a tensor of token ids: python3 -c \"import torch; "
        "torch.load('{path}').numpy().astype('uint32').tofile('{stem}.bin')\" and data.bin_type = \"uint32\"";
  } else if (holds(".npy")) {
    row.what = "a NumPy archive (.npz)";
    row.fix =
        "If it holds token ids: python3 -c \"import numpy; "
        "numpy.load('{path}')['NAME'].astype('uint32').tofile('{stem}.bin')\" and data.bin_type = \"uint32\"";
  } else if (holds("[Content_Types].xml")) {
    row.what = "an Office document";
    row.fix = "Save it as plain text: soffice --headless --convert-to txt:Text {path}";
    row.dataset = false;
  } else if (holds("application/epub") || holds("application/vnd.oasis")) {
    row.what = "an EPUB or OpenDocument file";
    row.fix = "Convert it to plain text: pandoc -t plain {path} -o {stem}.txt";
    row.dataset = false;
  }
  return row;
}

// A safetensors file begins with the length of its JSON header (8 bytes, the upper four are zero). The header follows.
bool is_safetensors(std::string_view head) {
  return head.size() > 10 && head.substr(4, 4) == "\0\0\0\0"sv && head.substr(8, 2) == "{\"";
}

// Returns "UTF-16" or "UTF-32" if a byte order mark or NULs at every second byte indicate it; otherwise "".
std::string_view wide_encoding(std::string_view head, const ByteCounts& bytes) {
  if (head.starts_with("\xFF\xFE\0\0"sv) || head.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
  if (head.starts_with("\xFF\xFE"sv) || head.starts_with("\xFE\xFF"sv)) return "UTF-16";
  const uint64_t most = std::max(bytes.nul_at[0], bytes.nul_at[1]), all = bytes.nul_at[0] + bytes.nul_at[1];
  if (head.size() < 16 || bytes.control > bytes.all / 100 || 5 * all < head.size() || most * 10 < all * 9) return "";
  return bytes.nul_at[0] > bytes.nul_at[1] ? "UTF-16BE" : "UTF-16LE";
}

ContentType classify(std::string_view head, const ByteCounts& bytes, const std::string& path) {
  ContentType content;
  content.examined_bytes = bytes.all;
  content.invalid_bytes = bytes.num_invalid();
  const auto is = [&](const FormatRow& row) {
    content.what = row.what;
    content.fix =
        compression_of(path) == Compression::none ? expand_placeholders(row.fix, path) : fix_of_compressed(row, path);
    content.dataset = row.dataset;
  };
  const double share = bytes.all == 0 ? 0 : static_cast<double>(bytes.num_invalid()) / static_cast<double>(bytes.all);
  for (const FormatRow& row : kFormats) {
    const bool may_be =
        row.in_text || share > kMaxInvalidShare || (bytes.num_invalid() > 0 && row.magic.size() >= kLongMagic);
    if (!may_be || head.size() < row.offset || !head.substr(row.offset).starts_with(row.magic)) continue;
    is(row.magic == "PK\x03\x04"sv ? zip_format(row, head) : row);
    if (is_compressed_tar(path) && (row.what.ends_with(" data") || row_compression(row) != Compression::none)) {
      content.what = "a compressed tar archive";
      content.fix = expand_placeholders(kUnpackTar, path);
    }
    return content;
  }
  if (bytes.num_invalid() > 0 && is_safetensors(head)) {
    is({"", 0, "a safetensors model", kUseTextFiles});
    return content;
  }
  if (share <= kMaxInvalidShare) {
    content.head = head;
    return content;
  }
  if (const std::string_view wide = wide_encoding(head, bytes); !wide.empty()) {
    content.what = fmt::format("{} text", wide);
    content.fix = "Convert it: " + iconv_command(wide, path);
  } else if (bytes.nul > 0 || static_cast<double>(bytes.control) > 0.005 * static_cast<double>(bytes.all)) {
    content.what = fmt::format("a binary file of unknown format ({} of {} bytes examined are NUL or not UTF-8)",
                               bytes.num_invalid(), bytes.all);
    content.fix = "Convert it to text; a file of token ids must be named .bin.";
  } else {
    content.what =
        fmt::format("text in another encoding ({} of {} bytes examined are not UTF-8)", bytes.invalid, bytes.all);
    const char* option = compression_of(path) == Compression::none ? "-i" : "-iz";
    content.fix = share < 0.3 ? "If it is Latin-1, as much European text is: " + iconv_command("WINDOWS-1252", path)
                              : fmt::format("Convert it (`file {} {}` guesses the encoding): {}", option, path,
                                            iconv_command("ENCODING", path));
  }
  return content;
}

ContentType detect_compressed_type(const std::string& path) {
  const bool gzip = compression_of(path) == Compression::gzip;
  const std::string head = obs::open_input_file(path).read(0, 4);
  const bool as_named = gzip ? head.starts_with("\x1F\x8B"sv)
                             : head == "\x28\xB5\x2F\xFD"sv || (head.size() == 4 && head.substr(1) == "\x2A\x4D\x18"sv);
  if (!as_named && !head.empty()) {
    ContentType content;
    content.what = fmt::format("data that are not {}, although the file name says so", gzip ? "gzip" : "zstd");
    content.fix = expand_placeholders("If it is text: mv {path} {stem}", path);
    content.dataset = true;
    return content;
  }
  std::string text(kWholeBytes, '\0');
  const auto stream = open_byte_stream(path);
  text.resize(stream->read(text));
  ByteCounts bytes;
  bytes.add(text, true, text.size() < kWholeBytes);
  ContentType content = classify(std::string_view(text).substr(0, kHeadBytes), bytes, path);
  const std::string name = without_compression(path);
  if (!content.is_text() && (has_extension(name, ".bin") || has_extension(name, ".idx"))) {
    content.what = "a compressed token file";
    content.fix = fmt::format("Token files are mapped into memory and cannot be compressed: {} {} > {}",
                              decompress_command(compression_of(path)), path, name);
    content.dataset = true;
  }
  return content;
}

}  // namespace

ContentType detect_content_type(const std::string& path) {
  const obs::File file = obs::open_input_file(path);
  if (compression_of(path) != Compression::none) return detect_compressed_type(path);
  ByteCounts bytes;
  const uint64_t size = file.size();
  if (size <= kWholeBytes) {
    const std::string all = file.read(0, kWholeBytes);
    bytes.add(all, true, true);
    return classify(std::string_view(all).substr(0, kHeadBytes), bytes, path);
  }
  const std::string head = file.read(0, kHeadBytes);
  bytes.add(head, true, false);
  const uint64_t last = size - kSampleBytes;
  for (uint64_t i = 1; i <= kSamples; ++i) {
    const uint64_t at = kHeadBytes + (last - kHeadBytes) * i / kSamples;
    bytes.add(file.read(at, kSampleBytes), false, i == kSamples);
  }
  return classify(head, bytes, path);
}

ContentType detect_content_type_of_bytes(std::string_view text, const std::string& path) {
  ByteCounts bytes;
  bytes.add(text, true, true);
  return classify(text.substr(0, kHeadBytes), bytes, path);
}

void require_text(const ContentType& content, std::string_view path) {
  if (!content.is_text()) throw IoError(fmt::format("{}: got {}; {}. {}", path, content.what, kExpected, content.fix));
}

void require_token_ids(const std::string& path) {
  // Token ids can be any bytes, so a magic number is used only if token ids rarely start with it.
  constexpr uint64_t kMinTextBytes = 64;
  const auto is_long = [](std::string_view magic) {
    return magic.size() >= 6 || (magic.size() >= 4 && magic.find('\0') == magic.npos && magic[0] != '\xFF') ||
           magic == "\x1F\x8B\x08"sv;
  };
  const obs::File file = obs::open_input_file(path);
  const std::string head = file.read(0, kHeadBytes);
  ByteCounts bytes;
  bytes.add(head, true, head.size() < kHeadBytes);
  ContentType content;
  for (const FormatRow& row : kFormats)
    if (is_long(row.magic) && head.size() >= row.offset &&
        std::string_view(head).substr(row.offset).starts_with(row.magic)) {
      const FormatRow found = row.magic == "PK\x03\x04"sv ? zip_format(row, head) : row;
      content.what = found.what;
      // Compressed token files are not read, so the file is decompressed and not renamed.
      const Compression compression = row_compression(found);
      content.fix = compression == Compression::none
                        ? expand_placeholders(found.fix, path)
                        : expand_placeholders(fmt::format("Decompress it: {} < {{path}} > {{stem}}.ids.bin",
                                                          decompress_command(compression)),
                                              path);
      break;
    }
  if (content.is_text() && is_safetensors(head))
    content.what = "a safetensors model", content.fix = expand_placeholders("Give a file of token ids instead.", path);
  if (content.is_text() && bytes.all >= kMinTextBytes && bytes.num_invalid() == 0 && bytes.control == 0) {
    content.what = "text";
    content.fix =
        expand_placeholders("Rename it: mv {path} {stem}.txt. `espalier data prepare` converts it to token ids.", path);
  }
  if (!content.is_text())
    throw IoError(fmt::format("{}: got {}; expected token ids, as its name says. {}", path, content.what, content.fix));
}

std::string describe_invalid_bytes(const ContentType& content, std::string_view path) {
  if (!content.is_text() || content.invalid_bytes == 0) return {};
  return fmt::format("{}: {} of {} bytes examined are NUL or not UTF-8; they are kept as they are", path,
                     content.invalid_bytes, content.examined_bytes);
}

std::string read_text_file(const std::string& path, size_t max_bytes, bool any_bytes) {
  const auto stream = open_byte_stream(path, max_bytes);
  std::string text;
  for (size_t got = 1; got > 0;) {
    const size_t have = text.size();
    if (have > max_bytes)
      throw IoError(fmt::format("{}: got more than {} bytes; expected a smaller file", path, max_bytes));
    text.resize(std::max<size_t>(2 * have, size_t{1} << 16));
    got = stream->read(std::span(text).subspan(have));
    text.resize(have + got);
    // stops reading an endless device such as /dev/zero
    if (have == 0 && !any_bytes) require_text(detect_content_type_of_bytes(text, path), path);
  }
  if (!any_bytes) require_text(detect_content_type_of_bytes(text, path), path);
  return text;
}

bool is_utf8(std::string_view text) {
  ByteCounts bytes;
  bytes.add(text, true, true);
  return bytes.invalid == 0;
}

}  // namespace esp::data
