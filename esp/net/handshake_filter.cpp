// A classic BPF program over the TCP segment, starting at its header. It runs on the listening socket for the segment
// that would complete a connection. With TCP_DEFER_ACCEPT that is the first segment with payload.
#include "esp/net/handshake_filter.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <array>

#include "esp/base/check.h"

namespace esp::net {
namespace {

// byte offsets of the magic and the job hash in the request; 8 bytes of each are compared
constexpr size_t kMagicAt = 0, kJobAt = 32;
constexpr uint32_t kWhole = 0xffffffff;

uint32_t word_at(std::string_view bytes, size_t at) {  // big-endian, as BPF loads it
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) word = word << 8 | static_cast<uint8_t>(bytes[at + i]);
  return word;
}

}  // namespace

bool attach_handshake_filter(int listening, std::string_view request) {
  ESP_CHECK(request.size() >= kJobAt + 8, "handshake request: got {} bytes; expected at least {}", request.size(),
            kJobAt + 8);
  std::array program{
      sock_filter BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12),  // TCP data offset, in 32-bit words
      sock_filter BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
      sock_filter BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 2),
      sock_filter BPF_STMT(BPF_MISC | BPF_TAX, 0),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
      sock_filter BPF_STMT(BPF_ALU | BPF_SUB | BPF_X, 0),
      // a segment without payload is a control segment: pass it
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 10, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, static_cast<uint32_t>(request.size()), 0, 8),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_IND, kMagicAt),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_at(request, kMagicAt), 0, 6),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_IND, kMagicAt + 4),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_at(request, kMagicAt + 4), 0, 4),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_IND, kJobAt),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_at(request, kJobAt), 0, 2),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_IND, kJobAt + 4),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_at(request, kJobAt + 4), 1, 0),
      sock_filter BPF_STMT(BPF_RET | BPF_K, 0),
      sock_filter BPF_STMT(BPF_RET | BPF_K, kWhole),
  };
  const sock_fprog all{static_cast<unsigned short>(program.size()), program.data()};
  return setsockopt(listening, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all) == 0;
}

void detach_handshake_filter(int fd) {
  const int unused = 0;
  setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
}

}  // namespace esp::net
