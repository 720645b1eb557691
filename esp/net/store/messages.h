// The bodies of the frames between a rank and the Hub, as pure codecs. A decoder throws CommError(corrupt) on anything
// that its encoder does not produce.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/error.h"
#include "esp/net/watch.h"
#include "esp/net/world.h"

namespace esp::net {

inline constexpr int kMaxWorldSize = 1 << 16;
inline constexpr size_t kMaxTextBytes = 4096;  // of a cause told to others; longer ones are cut

// set: key and value. get, try_get, erase: the key alone.
struct KeyValue {
  std::string key, value;
};
std::string encode_key_value(std::string_view key, std::string_view value);
KeyValue decode_key_value(std::string_view body);
std::string encode_key(std::string_view key);
std::string decode_key(std::string_view body);

struct Addition {
  std::string key;
  int64_t delta = 0;
};
std::string encode_addition(std::string_view key, int64_t delta);
Addition decode_addition(std::string_view body);

// Answers on a store connection: the request meant, then what came of it.
struct Reply {
  uint64_t request = 0;
  std::string rest;
};
std::string encode_reply(uint64_t request, std::string_view rest);
Reply decode_reply(std::string_view body);

// refused: whether the caller asked for something wrong (UsageError) or the Hub would not (CommError), and why.
struct Refusal {
  bool usage = false;
  std::string text;
};
std::string encode_refusal(const Refusal& refusal);
Refusal decode_refusal(std::string_view rest);

struct Join {
  int rank = 0, size = 0;
  Peer peer;
};
std::string encode_join(const Join& join);
Join decode_join(std::string_view body);

std::string encode_table(const std::vector<Peer>& peers);
std::vector<Peer> decode_table(std::string_view rest);

struct Welcome {
  std::string job;    // with the Hub's own random part: no two jobs share it
  int hub_rank = -1;  // the rank that hosts the Hub; -1: the launcher does
};
std::string encode_welcome(const Welcome& welcome);
Welcome decode_welcome(std::string_view body);

// One 64-bit number: cancel (a request), query and left (a rank).
std::string encode_number(uint64_t number);
uint64_t decode_number(std::string_view body);
int decode_rank(std::string_view body);

struct Loss {
  int rank = 0;
  std::string how;
};
std::string encode_loss(const Loss& loss);
Loss decode_loss(std::string_view body);

// abort (with members) and aborted (members empty).
struct Abort {
  uint64_t group = 0;
  std::vector<int> members;
  CommError cause{CommError::Kind::aborted, -1, ""};
};
std::string encode_abort(const Abort& abort);
Abort decode_abort(std::string_view body);

struct Ask {
  uint64_t id = 0, group = 0;
  std::vector<int> members;
};
std::string encode_ask(const Ask& ask);
Ask decode_ask(std::string_view body);

// question (standing unset), standing and answer: `rank` is the other side, the asker on its way to the asked and the
// asked on its way back.
struct Report {
  uint64_t id = 0, group = 0;
  int rank = 0;
  Standing standing;
};
std::string encode_report(const Report& report);
Report decode_report(std::string_view body);

}  // namespace esp::net
