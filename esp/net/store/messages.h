// Bodies of the frames between a rank and the Hub, as pure codecs. A decoder throws CommError(corrupt) for anything
// that its encoder does not produce.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/error.h"
#include "esp/net/failure_detector.h"
#include "esp/net/world.h"

namespace esp::net {

inline constexpr int kMaxWorldSize = 1 << 16;
inline constexpr size_t kMaxTextBytes = 4096;  // limit of an error text; longer texts are truncated

// Body of set: key and value. get, try_get and erase have only the key.
struct KeyValue {
  std::string key, value;
};
std::string encode_key_value(std::string_view key, std::string_view value);
KeyValue decode_key_value(std::string_view body);
std::string encode_key(std::string_view key);
std::string decode_key(std::string_view body);

struct AddRequest {
  std::string key;
  int64_t delta = 0;
};
std::string encode_add_request(std::string_view key, int64_t delta);
AddRequest decode_add_request(std::string_view body);

// Reply on a store connection: the request number, then the result.
struct StoreReply {
  uint64_t request = 0;
  std::string rest;
};
std::string encode_store_reply(uint64_t request, std::string_view rest);
StoreReply decode_store_reply(std::string_view body);

// Body of `refused`. `usage`: the request was wrong (UsageError); otherwise the Hub could not serve it (CommError).
struct RequestError {
  bool usage = false;
  std::string text;
};
std::string encode_request_error(const RequestError& error);
RequestError decode_request_error(std::string_view rest);

struct JoinRequest {
  int rank = 0, size = 0;
  Peer peer;
};
std::string encode_join_request(const JoinRequest& join);
JoinRequest decode_join_request(std::string_view body);

std::string encode_table(const std::vector<Peer>& peers);
std::vector<Peer> decode_table(std::string_view rest);

struct HubInfo {
  std::string job;    // job name with a random suffix from the Hub, so that no two jobs share it
  int hub_rank = -1;  // rank that hosts the Hub; -1: the launcher
};
std::string encode_hub_info(const HubInfo& hub_info);
HubInfo decode_hub_info(std::string_view body);

// Body with one 64-bit number: the request of cancel, the rank of query_rank and left.
std::string encode_number(uint64_t number);
uint64_t decode_number(std::string_view body);
int decode_rank(std::string_view body);

struct RankFailure {
  int rank = 0;
  std::string how;
};
std::string encode_rank_failure(const RankFailure& failure);
RankFailure decode_rank_failure(std::string_view body);

// Body of abort (with members) and of aborted (without members).
struct AbortMessage {
  uint64_t group = 0;
  std::vector<int> members;
  CommError cause{CommError::Kind::aborted, -1, ""};
};
std::string encode_abort(const AbortMessage& abort);
AbortMessage decode_abort(std::string_view body);

struct PositionQuery {
  uint64_t id = 0, group = 0;
  std::vector<int> members;
};
std::string encode_position_query(const PositionQuery& query);
PositionQuery decode_position_query(std::string_view body);

// Body of position_query (position unset), position_reply and position. On the way to the queried rank, `rank` is the
// asking rank; on the way back it is the queried rank.
struct PositionReport {
  uint64_t id = 0, group = 0;
  int rank = 0;
  CallPosition position;
};
std::string encode_position_report(const PositionReport& report);
PositionReport decode_position_report(std::string_view body);

}  // namespace esp::net
