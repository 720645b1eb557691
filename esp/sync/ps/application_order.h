// Application order: the order in which a server applied pushes and answered pulls. An asynchronous run is determined
// by it and the data, so a replay is bit-identical.
//
// As text, one event per line: `push WORKER STEP` or `pull WORKER STEP`. One file per server, server-K.order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace esp::sync {

struct OrderEvent {
  enum class Kind : uint8_t { push, pull } kind = Kind::push;
  int worker = 0;
  int64_t step = 0;
  bool operator==(const OrderEvent&) const = default;
};

std::string write_order(const std::vector<OrderEvent>& events);
std::vector<OrderEvent> parse_order(std::string_view text, std::string_view name);  // UsageError with the line

std::string order_file(const std::string& folder, int server);
void save_order(const std::string& folder, int server, const std::vector<OrderEvent>& events);
std::vector<OrderEvent> load_order(const std::string& folder, int server);

}  // namespace esp::sync
