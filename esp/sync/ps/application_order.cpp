#include "esp/sync/ps/application_order.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::sync {
namespace {

constexpr size_t kMaxOrderBytes = size_t{1} << 30;

template <typename Int>
bool take_number(std::string_view& line, Int& value) {
  if (line.empty() || line.front() != ' ') return false;
  line.remove_prefix(1);
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || value < 0) return false;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  return true;
}

bool parse_line(std::string_view line, OrderEvent& event) {
  if (line.starts_with("push"))
    event.kind = OrderEvent::Kind::push;
  else if (line.starts_with("pull"))
    event.kind = OrderEvent::Kind::pull;
  else
    return false;
  line.remove_prefix(4);
  return take_number(line, event.worker) && take_number(line, event.step) && line.empty();
}

}  // namespace

std::string write_order(const std::vector<OrderEvent>& events) {
  std::string text;
  for (const OrderEvent& event : events)
    text += fmt::format("{} {} {}\n", event.kind == OrderEvent::Kind::push ? "push" : "pull", event.worker, event.step);
  return text;
}

std::vector<OrderEvent> parse_order(std::string_view text, std::string_view name) {
  std::vector<OrderEvent> events;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    OrderEvent event;
    if (!parse_line(text.substr(0, end), event))
      throw UsageError(
          fmt::format("{}, line {}: expected «push WORKER STEP» or «pull WORKER STEP»", name, events.size() + 1));
    events.push_back(event);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return events;
}

std::string order_file(const std::string& folder, int server) {
  return fmt::format("{}/server-{}.order", folder, server);
}

void prepare_order_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError(fmt::format("sync.record: cannot create {}: {}", folder, error.message()));
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    throw IoError(fmt::format("sync.record: cannot write to {}: {}", folder, errno_text(errno)));
}

void save_order(const std::string& folder, int server, const std::vector<OrderEvent>& events) {
  prepare_order_folder(folder);
  obs::write_whole_file(order_file(folder, server), write_order(events));
}

std::vector<OrderEvent> load_order(const std::string& folder, int server) {
  const std::string path = order_file(folder, server);
  std::string text;
  try {
    text = obs::read_whole_file(path, kMaxOrderBytes);
  } catch (const IoError& error) {
    throw IoError(fmt::format("sync.replay: {}", error.what()));
  }
  return parse_order(text, path);
}

}  // namespace esp::sync
