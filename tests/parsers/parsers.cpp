#include "tests/parsers/parsers.h"

#include <bit>
#include <cstring>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/capi/handles.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/partial_manifest.h"
#include "esp/ckpt/safetensors.h"
#include "esp/comm/schedule_file.h"
#include "esp/dash/http_request.h"
#include "esp/dash/series.h"
#include "esp/dash/trace.h"
#include "esp/data/content_type.h"
#include "esp/data/records.h"
#include "esp/data/token_file.h"
#include "esp/data/tokenizer/bpe_files.h"
#include "esp/data/tokenizer/piece_tokenizer.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/data/tokenizer/wordpiece.h"
#include "esp/launch/control.h"
#include "esp/launch/elastic_rendezvous.h"
#include "esp/launch/environment.h"
#include "esp/model/hf_config.h"
#include "esp/net/address.h"
#include "esp/net/handshake.h"
#include "esp/net/store/frames.h"
#include "esp/net/store/messages.h"
#include "esp/net/tcp/frame.h"
#include "esp/obs/flight_format.h"
#include "esp/obs/flight_log.h"
#include "esp/parallel/pp/schedule_text.h"
#include "esp/plan/catalog.h"
#include "esp/plan/csv.h"
#include "esp/plan/hf_shape.h"
#include "esp/plan/rows.h"
#include "esp/sync/compress/compressor.h"
#include "esp/sync/gossip/graph_file.h"
#include "esp/sync/ps/application_order.h"
#include "esp/sync/ps/message.h"
#include "esp/train/deepspeed.h"
#include "esp/train/run_config.h"

namespace esp {
namespace {

// Builds a text from `items` items: open, item(0), between, item(1), …, close.
template <typename Item>
std::string repeated(size_t items, std::string_view open, std::string_view between, std::string_view close,
                     Item&& item) {
  std::string text(open);
  for (size_t i = 0; i < items; ++i) {
    if (i > 0) text += between;
    fmt::format_to(std::back_inserter(text), "{}", item(i));
  }
  return text += close;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void read_records(data::InputKind kind, std::string_view input) {
  auto records = data::make_record_reader(
      kind, [&] { return data::make_byte_stream(input, data::Compression::none, "input"); }, "input", {"text"},
      size_t{256} << 20);
  while (records->next()) (void)records->field(0);
}

void read_frames(std::string_view input) {
  net::FrameReader reader(net::kMaxRequestBytes);
  reader.append(input);
  while (reader.next()) {
  }
  (void)net::decode_table(input);
}

std::string many_frames(size_t items) {
  net::FrameWriter writer;
  return repeated(items, "", "", "", [&](size_t) { return writer.encode(net::FrameKind::get, "k"); });
}

// Encodes one field of a protocol buffer with wire type 2 (length-delimited).
std::string proto(int field, std::string_view body) {
  std::string text(1, static_cast<char>(field << 3 | 2));
  for (size_t left = body.size();; left >>= 7) {
    text += static_cast<char>((left & 0x7f) | (left > 0x7f ? 0x80 : 0));
    if (left <= 0x7f) break;
  }
  return text += body;
}

std::string sentencepiece(size_t items) {
  // a SentencePiece token of type 2 (unknown)
  const std::string unknown = proto(1, proto(1, "<unk>") + std::string("\x18\x02"));
  return repeated(items, unknown, "", "", [](size_t i) { return proto(1, proto(1, fmt::format("p{}", i))); });
}

std::string safetensors(size_t items) {
  std::string header = repeated(items, "{", ",", "}", [](size_t i) {
    return fmt::format(R"("t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i, i, i + 1);
  });
  uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(items, '\0');
}

std::string megatron(size_t items) {
  const auto header = data::megatron_header(data::TokenType::u16, items, items + 1);
  std::string file(reinterpret_cast<const char*>(header.data()), header.size());
  const auto put = [&](auto value) { file.append(reinterpret_cast<const char*>(&value), sizeof value); };
  for (size_t i = 0; i < items; ++i) put(int32_t{1});
  for (size_t i = 0; i < items; ++i) put(static_cast<int64_t>(2 * i));
  for (size_t i = 0; i <= items; ++i) put(static_cast<int64_t>(i));
  return file;
}

std::string manifest(size_t items, std::string_view state, std::string_view file) {
  return repeated(items / 2,
                  fmt::format(R"({{"format":"espalier","version":1,"step":1,"state":{},"tensors":{{)", state), ",",
                  "},",
                  [](size_t i) { return fmt::format(R"("t{}":{{"dtype":"float32","shape":[],"pieces":[]}})", i); }) +
         repeated(items / 2, R"("files":{)", ",", "}}",
                  [&](size_t i) { return fmt::format(R"("{}{}":{{"bytes":1,"xxh3_128":""}})", file, i); });
}

std::string base64_of(size_t i) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text(4, 'A');
  for (size_t k = 4; k-- > 0; i /= 64) text[k] = kLetters[i % 64];
  return text;  // four base64 letters, that is, a token of three bytes
}

// A full ring of records. The capacity is a power of two.
std::string flight_recorder(size_t items) {
  const size_t capacity = std::bit_floor(items);
  std::string file(obs::kFlightHeaderBytes + capacity * obs::kFlightRecordBytes, '\0');
  const auto put = [&](size_t offset, uint64_t word) { std::memcpy(file.data() + offset, &word, sizeof word); };
  put(offsetof(obs::FlightHeader, magic), obs::kFlightMagic);
  put(offsetof(obs::FlightHeader, capacity), capacity);
  put(offsetof(obs::FlightHeader, next), capacity);
  for (const size_t word : {0, 1}) {
    put(offsetof(obs::FlightHeader, first) + 8 * word, 1);
    put(offsetof(obs::FlightHeader, latest) + 8 * word, 2);
  }
  for (size_t i = 0; i < capacity; ++i) {
    const size_t record = obs::kFlightHeaderBytes + i * obs::kFlightRecordBytes;
    put(record, i + 1);               // number
    put(record + 24, i / 2);          // sequence
    put(record + 40, (i % 2) << 40);  // state: begun, ended
  }
  return file;
}

std::string tiktoken(size_t items) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  for (size_t i = 0; i < 256; ++i) bytes += fmt::format("{}{}== {}\n", kLetters[i >> 2], kLetters[(i & 3) << 4], i);
  return repeated(items, bytes, "", "", [](size_t i) { return fmt::format("{} {}\n", base64_of(i), i + 256); });
}

// JSON objects; each has at most 4096 keys, because only a vocabulary may have more.
std::string objects(size_t items) {
  constexpr size_t kKeys = 4000;
  return repeated(
      items / kKeys, R"({"more":[)", ",", R"(],"model":{"type":"Unigram","vocab":[["<unk>",0]],"unk_id":0}})",
      [](size_t) { return repeated(kKeys, "{", ",", "}", [](size_t k) { return fmt::format(R"("k{}":0)", k); }); });
}

std::string bpe(size_t items) {
  return repeated(items, R"({"model":{"type":"BPE","merges":[],"vocab":{)", ",", "}}}",
                  [](size_t i) { return fmt::format(R"("{}":{})", i, i); });
}
std::string merges(size_t items) {  // merges of all pairs of 1000 three-digit tokens
  const size_t side = 1000;
  return repeated(side, R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)", ",", ",",
                  [](size_t i) { return fmt::format(R"("{:03}":{})", i, i); }) +
         repeated(items, "", ",", R"(},"merges":[)",
                  [&](size_t i) { return fmt::format(R"("{:03}{:03}":{})", i / side, i % side, i + side); }) +
         repeated(items, "", ",", "]}}", [&](size_t i) { return fmt::format(R"("{:03} {:03}")", i / side, i % side); });
}
std::string unigram(size_t items) {
  return repeated(items, R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],)", ",", "]}}",
                  [](size_t i) { return fmt::format(R"(["p{}",-1])", i); });
}
std::string added(size_t items) {
  return repeated(items, R"({"added_tokens":[)", ",",
                  R"(],"model":{"type":"Unigram","vocab":[["<unk>",0]],"unk_id":0}})",
                  [](size_t i) { return fmt::format(R"({{"id":{},"content":"a{}"}})", i + 1, i); });
}

std::string schedule(size_t items) {
  return repeated(items,
                  R"({"espalier_schedule":1,"name":"x","op":"all_reduce","size":1,"split":[1],"rounds":1,)"
                  R"("ranks":[{"actions":[)",
                  ",", "]}]}",
                  [](size_t) { return R"({"round":0,"do":"copy","into":["output",0,1],"from":["input",0,1]})"; });
}

std::string trace(size_t items) {
  return repeated(items, R"({"traceEvents":[)", ",", "]}", [](size_t i) {
    return fmt::format(R"({{"ph":"X","name":"n{}","pid":{},"tid":0,"ts":{},"dur":1}})", i, i % 1000, i);
  });
}

std::string toml_keys(size_t items) {
  return repeated(items, "[unknown]\n", "", "", [](size_t i) { return fmt::format("k{}.a = 1\n", i); });
}

}  // namespace

const std::vector<Parser>& parsers() {
  using std::string_view;
  static const std::vector<Parser> table = {
      {"catalog",
       [](string_view input) { plan::Catalog().add(input, "input"); },
       {{"sources",
         [](size_t n) {
           return repeated(n, R"([processor]
name = "p"
memory_gib = 1
memory_gbs = 1
bf16_tflops = 1
multiprocessors = 1
[processor.sources]
)",
                           "", "", [](size_t i) { return fmt::format("k{} = \"s\"\n", i); });
         }}},
       {}},
      {"code",
       [](string_view input) {
         std::vector<float> values(8);
         sync::make_compressor("topk:0.5")
             ->decode(values.data(), kernel::WriteMode::overwrite, bytes_of(input), 8, DType::f32, {1, 0, 0}, {});
       },
       {},
       {}},
      {"content_type",
       [](string_view input) { (void)data::detect_content_type_of_bytes(input, "input"); },
       {{"lines", [](size_t n) { return repeated(n, "", "\n", "", [](size_t i) { return i; }); }}},
       {}},
      {"deepspeed",
       [](string_view input) { (void)train::import_deepspeed(input, "input", 1); },
       {{"keys",
         [](size_t n) {
           return repeated(std::min<size_t>(n, 80'000), "{", ",", "}",
                           [](size_t i) { return fmt::format(R"("k{}":1)", i); });
         }},
        {"bytes", [](size_t n) { return "{\"a\":\"" + std::string(2 * n, 'a') + "\"}"; }, "at most 1048576"}},
       {R"({"zero_optimization":)", R"({"optimizer":{"params":)"}},
      {"endpoint", [](string_view input) { (void)net::parse_endpoint(input); }, {}, {"tcp://"}},
      {"environment",
       [](string_view input) {
         (void)launch::expand_hosts(input);
         launch::Environment environment{{"SLURM_PROCID", "0"},        {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"},
                                         {"SLURM_STEP_NODELIST", "h"}, {"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "1"}};
         environment["SLURM_TASKS_PER_NODE"] = "1," + std::string(input);
         (void)launch::read_environment(environment);
       },
       {{"hosts", [](size_t n) { return repeated(n, "", ",", "", [](size_t i) { return fmt::format("h{}", i); }); }}},
       {}},
      {"flight_recorder",
       [](string_view input) {
         const obs::FlightLog log = obs::parse_flight_log(input, "input");
         (void)obs::to_json(log);
         (void)obs::unfinished(log);
       },
       {{"records", flight_recorder}},
       {}},
      {"graph_file",
       [](string_view input) { (void)sync::parse_graph(input, "input"); },
       {{"edges",
         [](size_t n) {
           return repeated(n, "nodes 4096\n", "", "",
                           [](size_t i) { return fmt::format("{} {} 0.0001\n", i / 1000, i % 1000); });
         }}},
       {"nodes 2\n"}},
      {"handshake",
       [](string_view input) {
         static const net::Secret secret(std::string(32, 's'));
         auto handshake = net::Handshake::make_callee(secret, "job");
         for (string_view left = input; !left.empty() && !handshake.done();) {
           const size_t count = std::min(left.size(), handshake.bytes_needed());
           handshake.feed(left.substr(0, count));
           left.remove_prefix(count);
         }
       },
       {},
       {}},
      {"hf_config",
       [](string_view input) { (void)model::config_from_hf(parse_json(input, "input")); },
       {{"keys",
         [](size_t n) {
           return repeated(n,
                           R"({"model_type":"gpt2","architectures":["GPT2LMHeadModel"],"vocab_size":8,"n_positions":8,)"
                           R"("n_embd":8,"n_layer":1,"n_head":1,"unused":{)",
                           ",", "}}", [](size_t i) { return fmt::format(R"("k{}":null)", i); });
         },
         "unused"}},
       {R"({"model_type":)"}},
      {"hf_shape",
       [](string_view input) {
         std::vector<std::string> assumed;
         (void)plan::shape_from_hf(parse_json(input, "input"), "input", assumed);
       },
       {{"keys",
         [](size_t n) {
           return repeated(n,
                           R"({"model_type":"gpt2","vocab_size":8,"n_positions":8,"n_embd":8,"n_layer":1,"n_head":1,)",
                           ",", "}", [](size_t i) { return fmt::format(R"("k{}":null)", i); });
         }}},
       {R"({"model_type":)"}},
      {"http_request",
       [](string_view input) { (void)dash::parse_request(input); },
       {{"headers",
         [](size_t n) {
           return repeated(n, "GET / HTTP/1.1\r\n", "", "\r\n", [](size_t i) { return fmt::format("h{}: 1\r\n", i); });
         }}},
       {}},
      {"hub", read_frames, {{"frames", many_frames, "exceeds its limit"}}, {}},
      {"jsonl",
       [](string_view input) { read_records(data::InputKind::jsonl, input); },
       {{"lines", [](size_t n) { return repeated(n, "", "\n", "", [](size_t) { return R"({"text":"a"})"; }); }},
        {"keys",
         [](size_t n) { return repeated(n, "{", ",", "}", [](size_t i) { return fmt::format(R"("k{}":0)", i); }); }}},
       {R"({"text":)"}},
      {"launch_message",
       [](string_view input) {
         const std::string text(input);
         (void)launch::parse_rank_message(text);
         (void)launch::parse_epoch(text);
       },
       {{"members",
         [](size_t n) {
           return repeated(n, R"({"number":1,"endpoint":"h:1","members":[)", ",", "]}", [](size_t i) { return i; });
         }}},
       {R"({"members":)"}},
      {"manifest",
       [](string_view input) { (void)to_json(ckpt::parse_manifest(input, "input")); },
       {{"tensors and files", [](size_t n) { return manifest(n, "{}", "f"); }}},
       {R"({"format":"espalier","version":1,"step":1,"files":{},"tensors":{},"state":)"}},
      {"options",
       [](string_view input) { (void)capi::parse_options(std::string(input).c_str()); },
       {{"shape", [](size_t n) { return repeated(n, "shape=", "x", "", [](size_t) { return 1; }); }}},
       {}},
      {"partial_manifest",
       [](string_view input) {
         const ckpt::PartialManifest part = ckpt::parse_partial_manifest(input, "input");
         (void)to_json(ckpt::merge({part}).manifest);
       },
       {{"tensors and files", [](size_t n) { return manifest(n, R"({"rank":0,"world":1})", "model-r00000-"); },
         "exactly once"}},
       {}},
      {"ps_message",
       [](string_view input) {
         (void)sync::parse_order(input, "input");
         (void)sync::decode_message(bytes_of(input).first(std::min(input.size(), sync::kMessageBytes)));
       },
       {{"events",
         [](size_t n) { return repeated(n, "", "", "", [](size_t i) { return fmt::format("push 0 {}\n", i); }); },
         "wrong magic number"}},
       {}},
      {"records",
       [](string_view input) {
         read_records(input.starts_with('[') ? data::InputKind::json : data::InputKind::csv, input);
       },
       {{"rows",
         [](size_t n) {
           return repeated(n, "text,b\n", "\n", "", [](size_t i) { return fmt::format("\"{}\",1", i); });
         }},
        {"columns", [](size_t n) { return repeated(n, "text,", ",", "", [](size_t i) { return i; }); }},
        {"objects", [](size_t n) { return repeated(n, "[", ",", "]", [](size_t) { return R"({"text":"a"})"; }); }}},
       {R"([{"text":)"}},
      {"rows",
       [](string_view input) {
         (void)plan::parse_csv(input, "input");
         if (input.size() < 4096) (void)plan::read_rows(input, "input", plan::built_in_catalog());
       },
       {{"cells",
         [](size_t n) { return repeated(n / 2, "", "", "", [](size_t i) { return fmt::format("\"{}\",1\n", i); }); }},
        {"columns", [](size_t n) { return repeated(n, "", ",", "\n", [](size_t i) { return i; }); }}},
       {}},
      {"run_config",
       [](string_view input) {
         (void)train::parse_resolved_config(input, "input", train::UnknownKeys::skip);
         (void)train::parse_run_config(input, "input", {});
       },
       {{"keys", toml_keys, "unknown"},
        {"list", [](size_t n) { return repeated(n, "[unknown]\na = [", ",", "]", [](size_t) { return 1; }); },
         "unknown"}},
       {"[model]\nlayers = ", "model."}},
      {"run_files",
       [](string_view input) {
         dash::Series series;
         for (size_t at = 0; at < input.size();) {
           const size_t end = std::min(input.find('\n', at), input.size());
           series.add_line(input.substr(at, end - at));
           at = end + 1;
         }
         (void)series.gaps();
         (void)dash::parse_trace(input);
       },
       {{"spans", trace},
        {"lines",
         [](size_t n) {
           return repeated(n, "", "", "", [](size_t i) { return fmt::format("{{\"step\":{},\"loss\":1}}\n", i); });
         },
         "no complete list"},
        {"lines of restarts",
         [](size_t n) {
           return repeated(n, "", "", "",
                           [](size_t i) { return fmt::format("{{\"step\":{},\"loss\":1}}\n", i % 1000); });
         },
         "no complete list"}},
       {R"({"traceEvents":[{"args":)"}},
      {"safetensors",
       [](string_view input) { (void)ckpt::parse_safetensors(bytes_of(input), input.size(), "input"); },
       {{"tensors", safetensors}},
       {}},
      {"schedule_file",
       [](string_view input) { (void)comm::parse_schedule(input, "input"); },
       {{"actions", [](size_t n) { return schedule(std::min<size_t>(n, 180'000)); }}},
       {R"({"espalier_schedule":1,"ranks":)"}},
      {"schedule_text",
       [](string_view input) { (void)parallel::parse_schedule_text(input, "input"); },
       {{"actions",
         [](size_t n) {
           const size_t batches = std::min<size_t>(n / 2, 65536);
           return repeated(batches, fmt::format("espalier pipeline 1\nstages 1\nmicro_batches {}\nstage 0:", batches),
                           "", "\n", [](size_t i) { return fmt::format(" F{} B{}", i, i); });
         }}},
       {}},
      {"sentencepiece",
       [](string_view input) { (void)data::read_sentencepiece(input, "input"); },
       {{"pieces", sentencepiece}},
       {}},
      {"tcp_frame",
       [](string_view input) {
         std::byte wire[net::kFrameHeaderBytes] = {};
         std::memcpy(wire, input.data(), std::min(input.size(), sizeof wire));
         (void)net::decode_frame(net::ConstFrameBytes(wire), 1);
       },
       {},
       {}},
      {"tiktoken",
       [](string_view input) { (void)data::read_tiktoken(input, "input", "o200k", "input"); },
       {{"tokens", tiktoken}},
       {}},
      {"token_file",
       [](string_view input) {
         uint64_t sequences = 0;  // of one u16 token each, so the .bin has twice as many bytes
         if (input.size() >= 26) std::memcpy(&sequences, input.data() + 18, sizeof sequences);
         const data::MegatronIndex index(bytes_of(input), 2 * sequences, "input");
         (void)index.num_documents();
       },
       {{"sequences", megatron}},
       {}},
      {"tokenizer_json",
       [](string_view input) { (void)data::read_tokenizer_json(input, "input"); },
       {{"objects", objects}, {"vocab", bpe}, {"merges", merges}, {"pieces", unigram}, {"added tokens", added}},
       {R"({"post_processor":)", R"({"normalizer":)", R"({"model":{"vocab":)"}},
      {"vocabulary",
       [](string_view input) {
         if (input.starts_with('{'))
           (void)data::read_gpt2_files(input, "", "input");
         else
           (void)data::read_vocab_txt(input, true, "input");
       },
       {{"tokens", [](size_t n) { return repeated(n, "[UNK]\n", "\n", "", [](size_t i) { return i; }); }},
        {"vocab.json",
         [](size_t n) {
           return repeated(n, "{", ",", "}", [](size_t i) { return fmt::format(R"("{}":{})", i, i); });
         }}},
       {}},
      {"failure_detector", read_frames, {{"frames", many_frames, "exceeds its limit"}}, {}},
      {"weight_index",
       [](string_view input) { (void)to_json(ckpt::parse_weight_index(input, "input")); },
       {{"tensors",
         [](size_t n) {
           return repeated(n, R"({"weight_map":{)", ",", "}}", [](size_t i) { return fmt::format(R"("t{}":"f")", i); });
         }}},
       {R"({"weight_map":)"}},
  };
  return table;
}

}  // namespace esp
