#include "esp/train/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::train {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}
constexpr auto kTable = make_table();

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <typename T>
void put(std::string& out, T value) {  // writes the value in little-endian order
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Writes the key of a protobuf field: field number and wire type (0: varint, 1: eight bytes, 2: length and bytes, 5:
// four bytes).
void put_key(std::string& out, int field, int wire) {
  put_varint(out, static_cast<uint64_t>(field << 3 | wire));
}
void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, 2);
  put_varint(out, bytes.size());
  out += bytes;
}
std::string event_at(double wall) {
  std::string event;
  put_key(event, 1, 1);
  put(event, std::bit_cast<uint64_t>(wall));
  return event;
}

std::string file_name(const std::string& folder) {
  std::filesystem::create_directories(folder);
  char host[256] = "host";
  gethostname(host, sizeof(host) - 1);
  return fmt::format("{}/events.out.tfevents.{}.{}.{}", folder, static_cast<int64_t>(wall_seconds()), host, getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, int64_t first_step)
    : file_(file_name(folder), O_WRONLY | O_CREAT | O_APPEND) {
  std::string version = event_at(wall_seconds());  // field number in Event: file_version = 3
  put_bytes(version, 3, "brain.Event:2");
  record(version);
  std::string session;  // field number in SessionLog: status = 1; the value 1 means START
  put_key(session, 1, 0);
  put_varint(session, 1);
  std::string start = event_at(wall_seconds());  // field numbers in Event: step = 2, session_log = 7
  put_key(start, 2, 0);
  put_varint(start, static_cast<uint64_t>(first_step));
  put_bytes(start, 7, session);
  record(start);
  flush();
}

void TensorBoardWriter::record(std::string_view event) {
  const auto masked = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; };
  std::string length;
  put(length, static_cast<uint64_t>(event.size()));
  buffer_ += length;
  put(buffer_, masked(crc32c(length)));
  buffer_ += event;
  put(buffer_, masked(crc32c(event)));
}

void TensorBoardWriter::scalar(std::string_view tag, double value, int64_t step) {
  std::string one;  // field numbers in Summary.Value: tag = 1, simple_value = 2
  put_bytes(one, 1, tag);
  put_key(one, 2, 5);
  put(one, std::bit_cast<uint32_t>(static_cast<float>(value)));
  std::string summary;
  put_bytes(summary, 1, one);
  std::string event = event_at(wall_seconds());  // field numbers in Event: wall_time = 1, step = 2, summary = 5
  put_key(event, 2, 0);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  record(event);
}

void TensorBoardWriter::flush() {
  const uint64_t before = file_.size();
  const std::string records = std::exchange(buffer_, {});
  try {
    file_.write_all(records);
  } catch (const IoError&) {
    file_.truncate(before);  // removes a partial record, because readers stop at it
    throw;
  }
}

}  // namespace esp::train
