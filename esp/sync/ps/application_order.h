// Application order: the order in which a server applied pushes and answered pulls. The data and this order determine
// the result of an asynchronous run, so replaying the order gives bit-identical results.
//
// Text format, one event per line: `push WORKER STEP` or `pull WORKER STEP`. One file per server: server-K.order.
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
// throws a UsageError that names the invalid line
std::vector<OrderEvent> parse_order(std::string_view text, std::string_view name);

std::string order_file(const std::string& folder, int server);
// IoError if order files cannot be written to the folder. Creates it.
void prepare_order_folder(const std::string& folder);
void save_order(const std::string& folder, int server, const std::vector<OrderEvent>& events);
std::vector<OrderEvent> load_order(const std::string& folder, int server);

}  // namespace esp::sync
