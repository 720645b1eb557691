#include "esp/parallel/pp/schedule_text.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/parallel/pp/validate.h"

namespace esp::parallel {
namespace {

constexpr std::string_view kBlank = " \t\r";

class Reader {
 public:
  explicit Reader(std::string_view what) : what_(what) {}

  PipelineSchedule read(std::string_view text) {
    if (text.size() > kMaxScheduleTextBytes)
      throw IoError(fmt::format("{}: got {} bytes; expected at most {}", what_, text.size(), kMaxScheduleTextBytes));
    schedule_.name = what_;
    schedule_.shape = {0, 0, 0};
    while (!text.empty()) {
      ++line_;
      const size_t end = std::min(text.find('\n'), text.size());
      rest_ = text.substr(0, end);
      rest_ = rest_.substr(0, rest_.find('#'));
      text.remove_prefix(std::min(end + 1, text.size()));
      if (const std::string_view word = next(); !word.empty()) read_line(word);
    }
    finish();
    return std::move(schedule_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw IoError(fmt::format("{}, line {}: {}", what_, line_, fmt::format(format, std::forward<Args>(args)...)));
  }

  std::string_view next() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlank), rest_.size()));
    const std::string_view word = rest_.substr(0, rest_.find_first_of(kBlank));
    rest_.remove_prefix(word.size());
    return word;
  }

  // Messages quote at most 24 characters.
  static std::string quoted(std::string_view word) {
    std::string text = "\"";
    for (char c : word.substr(0, 24)) text += c >= ' ' && c <= '~' ? c : '?';
    return text + (word.size() > 24 ? "…\"" : "\"");
  }

  int number(std::string_view word, int least, int most, std::string_view of) const {
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < least || value > most)
      fail("{}: got {}; expected an integer from {} to {}", of, quoted(word), least, most);
    return value;
  }

  void read_line(std::string_view word) {
    if (!headed_) return read_head(word);
    ScheduleShape& shape = schedule_.shape;
    if (word == "stages") return read_size(word, shape.stages, kMaxScheduleStages);
    if (word == "chunks") return read_size(word, shape.chunks, kMaxScheduleChunks);
    if (word == "micro_batches") return read_size(word, shape.micro_batches, kMaxScheduleMicroBatches);
    if (word == "stage") return read_stage();
    fail("got {}; expected stages, chunks, micro_batches or stage", quoted(word));
  }

  void read_head(std::string_view word) {
    if (word != "espalier" || next() != "pipeline") fail("a schedule must begin with \"espalier pipeline 1\"");
    if (const int version = number(next(), 0, 1 << 20, "the version"); version != 1)
      fail("got version {}; expected 1", version);
    end_line();
    headed_ = true;
  }

  void end_line() {
    if (const std::string_view more = next(); !more.empty()) fail("unexpected word {}", quoted(more));
  }

  void read_size(std::string_view name, int& size, int most) {
    if (size != 0) fail("{} is given twice", name);
    if (!schedule_.stages.empty()) fail("{} must be given before the first stage", name);
    size = number(next(), 1, most, name);
    end_line();
  }

  void read_stage() {
    ScheduleShape& shape = schedule_.shape;
    if (shape.stages == 0 || shape.micro_batches == 0) fail("stages and micro_batches must be given before a stage");
    if (shape.chunks == 0) shape.chunks = 1;
    if (static_cast<size_t>(shape.virtual_stages()) * static_cast<size_t>(shape.micro_batches) > kMaxScheduleActions)
      fail("got {} stages, {} chunks per stage, {} micro-batches: more than {} actions", shape.stages, shape.chunks,
           shape.micro_batches, kMaxScheduleActions);
    schedule_.stages.resize(static_cast<size_t>(shape.stages));
    std::string_view word = next();
    if (word.empty() || word.back() != ':') fail("a stage line must begin with its number, as in \"stage 0:\"");
    word.remove_suffix(1);
    auto& actions = schedule_.stages[static_cast<size_t>(number(word, 0, shape.stages - 1, "the stage"))];
    for (word = next(); !word.empty(); word = next()) {
      actions.push_back(action(word));
      if (++num_actions_ > kMaxScheduleActions) fail("got more than the maximum of {} actions", kMaxScheduleActions);
    }
  }

  PipelineAction action(std::string_view word) const {
    const size_t kind = std::string_view("FBW").find(word[0]);
    if (kind == std::string_view::npos)
      fail("got {}; expected an action: F, B or W and a micro-batch, as in F3", quoted(word));
    const std::string_view numbers = word.substr(1);
    const size_t dot = numbers.find('.');
    PipelineAction action;
    action.kind = static_cast<ActionKind>(kind);
    action.micro_batch = number(numbers.substr(0, dot), 0, schedule_.shape.micro_batches - 1,
                                fmt::format("the micro-batch of {}", quoted(word)));
    if (dot != std::string_view::npos)
      action.chunk =
          number(numbers.substr(dot + 1), 0, schedule_.shape.chunks - 1, fmt::format("the chunk of {}", quoted(word)));
    else if (schedule_.shape.chunks > 1)
      fail("{}: the chunk number is missing; expected one of {} chunks, as in {}.0", quoted(word),
           schedule_.shape.chunks, word.substr(0, 24));
    return action;
  }

  void finish() {
    if (!headed_) fail("a schedule must begin with \"espalier pipeline 1\"");
    if (schedule_.stages.empty()) fail("no stage is listed");
    const auto is_weights = [](const PipelineAction& action) { return action.kind == ActionKind::weights; };
    for (const auto& actions : schedule_.stages)
      if (std::any_of(actions.begin(), actions.end(), is_weights)) schedule_.backward = Backward::split;
  }

  const std::string what_;
  PipelineSchedule schedule_;
  std::string_view rest_;  // unread rest of the line
  int line_ = 0;
  size_t num_actions_ = 0;
  bool headed_ = false;
};

}  // namespace

bool is_schedule_file_name(std::string_view schedule) {
  return schedule.ends_with(kScheduleSuffix);
}

PipelineSchedule parse_schedule_text(std::string_view text, std::string_view what) {
  PipelineSchedule schedule = Reader(what).read(text);
  validate(schedule);
  return schedule;
}

std::string write_schedule_text(const PipelineSchedule& schedule) {
  const auto [stages, chunks, micro_batches] = schedule.shape;
  std::string text = fmt::format("espalier pipeline 1\nstages {}\nmicro_batches {}\n", stages, micro_batches);
  if (chunks > 1) text += fmt::format("chunks {}\n", chunks);
  for (size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    text += fmt::format("stage {}:", stage);
    for (const PipelineAction& action : schedule.stages[stage]) text += " " + name_of(action, chunks);
    text += "\n";
  }
  return text;
}

void check_fits(const PipelineSchedule& schedule, const ScheduleShape& shape) {
  const auto text = [](const ScheduleShape& s) {
    return fmt::format("{} stages, {} chunks per stage, {} micro-batches", s.stages, s.chunks, s.micro_batches);
  };
  if (schedule.shape != shape)
    throw UsageError(
        fmt::format("pipeline schedule {}: got a schedule for {}; this training run has {} (parallel.pp, "
                    "parallel.interleave, and the sequences per replica divided by train.micro_batch)",
                    schedule.name, text(schedule.shape), text(shape)));
}

}  // namespace esp::parallel
