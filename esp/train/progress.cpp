#include "esp/train/progress.h"

#include <stdio_ext.h>

#include <cerrno>
#include <cmath>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/format.h"
#include "esp/train/run_reporter.h"

namespace esp::train {

std::string format_seconds(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f}s", seconds);
  const auto s = static_cast<int64_t>(std::lround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

std::string format_count(int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

std::string write_text(std::FILE* out, const std::string& text) {
  if (std::fputs(text.c_str(), out) >= 0 && std::fflush(out) == 0) return {};
  std::string why = errno_text(errno);
  __fpurge(out);
  std::clearerr(out);
  return why;
}

void Progress::put(const std::string& text) {
  if (!out_) return;
  const std::string why = write_text(out_, text);
  if (why.empty()) return;
  out_ = nullptr;
  live_shown_ = false;
  write_text(notes_,
             fmt::format("stdout cannot be written ({}): no more step lines; training continues, and metrics.jsonl "
                         "has every logged step\n",
                         why));
}

Progress::~Progress() {
  if (live_shown_) put("\n");
}

namespace {

// Large values, as in a diverging run, are printed with fewer digits.
std::string short_number(double value, int digits) {
  return std::abs(value) < 1e6 ? fmt::format("{:.{}f}", value, digits) : fmt::format("{:.3e}", value);
}

}  // namespace

std::string Progress::line_of(const StepReport& r) const {
  std::string line = fmt::format("step {:>{}}/{}  loss {}", r.step, fmt::formatted_size("{}", options_.steps),
                                 options_.steps, short_number(r.result.loss, 4));
  if (r.val_loss) line += fmt::format("  val {}", short_number(*r.val_loss, 4));
  line += r.result.skipped ? "  grad not finite, skipped" : "  grad " + short_number(r.result.grad_norm, 3);
  line += fmt::format("  lr {:.2e}  {:.0f} tok/s  {:.1f} GFLOP/s", r.result.lr,
                      static_cast<double>(r.result.tokens) / r.seconds, r.flops_per_s * 1e-9);
  if (r.mfu > 0) line += fmt::format("  mfu {:.1f}%", r.mfu * 100);
  if (r.hfu > r.mfu) line += fmt::format("  hfu {:.1f}%", r.hfu * 100);
  const RankStats& of = r.rank_stats;
  if (of.memory_bytes == 0) return line;  // there are no statistics before the first logged step
  if (options_.num_ranks == 1)
    line += fmt::format("  mem {}", format_bytes(of.memory_bytes));
  else if (of.one_rank)
    line += fmt::format("  rank 0: mem {}, sent {} ({})", format_bytes(of.memory_bytes),
                        format_bytes(static_cast<uint64_t>(of.bytes_sent)), options_.method);
  else
    line += fmt::format("  mem {}/rank (max)  sent {}/rank ({})", format_bytes(of.memory_bytes),
                        format_bytes(static_cast<uint64_t>(of.bytes_sent)), options_.method);
  return line;
}

void Progress::clear_live() {
  if (live_shown_) put("\r\x1b[K");
  live_shown_ = false;
}

void Progress::step(const StepReport& r, bool logged) {
  mean_seconds_ = mean_seconds_ == 0 ? r.seconds : 0.9 * mean_seconds_ + 0.1 * r.seconds;
  if (!options_.live) {
    if (logged) put(line_of(r) + "\n");
    return;
  }
  clear_live();
  if (r.val_loss) put(line_of(r) + "\n");  // this line stays on the screen, unlike the live line
  const double left = static_cast<double>(options_.steps - r.step) * mean_seconds_;
  std::string line = fmt::format("{}  eta {}", line_of(r), format_seconds(left));
  if (line.size() >= static_cast<size_t>(options_.columns)) line.resize(static_cast<size_t>(options_.columns) - 1);
  put(line);
  live_shown_ = out_ != nullptr;
}

void Progress::note(const std::string& line) {
  clear_live();
  write_text(options_.one_screen && out_ ? out_ : notes_, line + "\n");
}

}  // namespace esp::train
