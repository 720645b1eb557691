#include "esp/train/progress.h"

#include <cmath>

#include <fmt/format.h>

#include "esp/train/reports.h"

namespace esp::train {

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f}s", seconds);
  const auto s = static_cast<int64_t>(std::lround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

std::string counted(int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

// A terminal that was closed under a run costs the run nothing.
void Progress::put(const std::string& text) {
  std::fputs(text.c_str(), out_);
}

Progress::~Progress() {
  if (live_shown_) std::fputc('\n', out_);
}

std::string Progress::line_of(const StepReport& r) const {
  std::string line = fmt::format("step {:>{}}/{}  loss {:.4f}", r.step, fmt::formatted_size("{}", options_.steps),
                                 options_.steps, r.result.loss);
  if (r.val_loss) line += fmt::format("  val {:.4f}", *r.val_loss);
  line +=
      r.result.skipped ? std::string("  grad not finite, skipped") : fmt::format("  grad {:.3f}", r.result.grad_norm);
  line += fmt::format("  lr {:.2e}  {:.0f} tok/s  {:.1f} GFLOP/s", r.result.lr,
                      static_cast<double>(r.result.tokens) / r.seconds, r.flops_per_s * 1e-9);
  if (r.mfu > 0) line += fmt::format("  mfu {:.1f}%", r.mfu * 100);
  if (r.hfu > r.mfu) line += fmt::format("  hfu {:.1f}%", r.hfu * 100);
  line += fmt::format("  mem {}", format_bytes(r.memory_bytes));
  return line;
}

void Progress::clear_live() {
  if (live_shown_) std::fputs("\r\x1b[K", out_);
  live_shown_ = false;
}

void Progress::step(const StepReport& r, bool logged) {
  mean_seconds_ = mean_seconds_ == 0 ? r.seconds : 0.9 * mean_seconds_ + 0.1 * r.seconds;
  if (!options_.live) {
    if (logged) put(line_of(r) + "\n");
    std::fflush(out_);
    return;
  }
  clear_live();
  if (r.val_loss) put(line_of(r) + "\n");  // evaluations stay on the screen
  const double left = static_cast<double>(options_.steps - r.step) * mean_seconds_;
  std::string line = fmt::format("{}  eta {}", line_of(r), format_seconds(left));
  if (line.size() >= static_cast<size_t>(options_.columns)) line.resize(static_cast<size_t>(options_.columns) - 1);
  put(line);
  std::fflush(out_);
  live_shown_ = true;
}

void Progress::note(const std::string& line) {
  clear_live();
  put(line + "\n");
  std::fflush(out_);
}

}  // namespace esp::train
