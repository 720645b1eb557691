// Fuzzes the Hub's whole request path without sockets. The input is a script: each step gives a connection, a frame
// kind and a body. The body gets a valid frame header, so that the decoders behind the checksum are reached. A step may
// also send raw bytes, or close or reopen a connection. The Hub's output must be a valid frame sequence.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "esp/net/store/hub_core.h"

namespace {

using namespace esp::net;

constexpr int kRanks = 3, kConnections = 8;

class Script {
 public:
  Script(const uint8_t* data, size_t size) : bytes_(reinterpret_cast<const char*>(data), size) {}

  void run() {
    for (int id = 0; id < kConnections; ++id) open(id);
    while (bytes_.size() >= 3) {
      auto step = static_cast<unsigned char>(bytes_[0]);
      int id = step % kConnections;
      auto kind = static_cast<FrameKind>(bytes_[1]);
      size_t count = std::min<size_t>(static_cast<unsigned char>(bytes_[2]), bytes_.size() - 3);
      std::string_view body = bytes_.substr(3, count);
      bytes_.remove_prefix(3 + count);
      if (step / kConnections % 8 == 7) {
        close(id);
        open(id);
      } else if (step / kConnections % 8 == 6) {
        core_.received(live_[id], body);
      } else {
        core_.received(live_[id], writers_[live_[id]].encode(kind, body));
      }
    }
  }

 private:
  // Connections of the first half are store connections, those of the second half failure detector connections. Their
  // ranks are -1 to 2.
  void open(int id) {
    live_[id] = next_++;
    Role role = id < kConnections / 2 ? Role::store : Role::failure_detector;
    core_.opened(live_[id], {role, id % (kConnections / 2) - 1, "job", 0, 0});
  }
  void close(int id) { core_.closed(live_[id]); }

  std::string_view bytes_;
  int next_ = 0;
  std::map<int, int> live_;
  std::map<int, FrameWriter> writers_;
  std::map<int, FrameReader> readers_;
  HubCore core_{kRanks,
                {"job-1", 0},
                esp::Log(esp::LogLevel::off, -1),
                [this](int id, const std::string& bytes) {
                  auto& reader = readers_.try_emplace(id, kMaxAnswerBytes).first->second;
                  reader.append(bytes);
                  while (reader.next()) {
                  }
                  if (reader.buffered() > 0) std::abort();
                },
                [](int) {}};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script(data, size).run();
  return 0;
}
