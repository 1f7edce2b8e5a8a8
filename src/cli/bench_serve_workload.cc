#include "cli/bench_serve_workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.h"
#include "formats/json.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{2} << 30;
constexpr int64_t kMaxLength = 1 << 20;
constexpr int32_t kTraceBlock = 512;  // tokens behind one of a trace's hash ids

// Words that nearly every vocabulary holds as one token.
constexpr std::array kWords = {"the", "of",   "and",  "to",   "in",   "is",   "that", "for",  "it",   "as",   "was",  "with",
                               "be",  "by",   "on",   "not",  "he",   "this", "are",  "or",   "his",  "from", "at",   "which",
                               "but", "have", "an",   "had",  "they", "you",  "were", "their", "one", "all",  "we",   "can",
                               "her", "has",  "there", "been", "if",  "more", "when", "will", "would", "who", "so",   "no"};

// `count` more tokens of the prompt: words, or ids of the middle half of a vocabulary, where no special tokens are.
void Extend(WorkItem* item, int64_t count, int32_t vocab_size, std::mt19937_64* random) {
  for (int64_t i = 0; i < count; ++i) {
    if (vocab_size > 0) {
      const uint64_t half = static_cast<uint64_t>(vocab_size) / 2;
      item->prompt_ids.push_back(static_cast<int32_t>(half / 2 + (*random)() % half));
    } else {
      if (!item->prompt.empty() && item->prompt.back() != '\n') item->prompt += ' ';
      item->prompt += kWords[(*random)() % kWords.size()];
    }
  }
}

void EndBlock(WorkItem* item, int32_t vocab_size) {
  if (vocab_size == 0) item->prompt += '\n';
}

int32_t Varied(int32_t length, float range, std::mt19937_64* random) {
  if (range <= 0) return length;
  const double part = std::uniform_real_distribution<double>(1.0 - range, 1.0 + range)(*random);
  return std::max(1, static_cast<int32_t>(std::lround(length * part)));
}

std::vector<WorkItem> Random(const WorkloadOptions& options, std::mt19937_64* random) {
  const bool shared = options.dataset == "shared-prefix";
  std::vector<WorkItem> prefixes(shared ? static_cast<size_t>(options.num_prefixes) : 0);
  for (WorkItem& prefix : prefixes) {
    Extend(&prefix, options.prefix_len, options.vocab_size, random);
    EndBlock(&prefix, options.vocab_size);
  }
  std::vector<WorkItem> items;
  for (int32_t i = 0; i < options.num_prompts; ++i) {
    WorkItem item;
    if (shared) item = prefixes[static_cast<size_t>(i) % prefixes.size()];
    Extend(&item, Varied(options.input_len, options.range, random), options.vocab_size, random);
    item.output_len = Varied(options.output_len, options.range, random);
    items.push_back(std::move(item));
  }
  return items;
}

// Lengths like those of ShareGPT's first turns (log-normal; means about 210 and 240 tokens), for want of a file.
std::vector<WorkItem> LikeShareGpt(const WorkloadOptions& options, std::mt19937_64* random) {
  std::normal_distribution<double> bell;
  const auto length = [&](double median, double spread) {
    return static_cast<int32_t>(std::clamp(median * std::exp(spread * bell(*random)), 4.0, 1024.0));
  };
  std::vector<WorkItem> items(static_cast<size_t>(options.num_prompts));
  for (WorkItem& item : items) {
    Extend(&item, length(80, 1.5), options.vocab_size, random);
    item.output_len = length(150, 1.0);
  }
  return items;
}

// [{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]}, …]
Result<std::vector<WorkItem>> ShareGpt(const WorkloadOptions& options, std::mt19937_64* random) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonFile(options.path, {.max_bytes = kMaxFileBytes, .max_values = 100'000'000}));
  std::vector<WorkItem> items;
  try {
    for (const auto& entry : json) {
      const auto turns = entry.find("conversations");
      if (turns == entry.end() || turns->size() < 2) continue;
      WorkItem item;
      item.prompt = (*turns)[0].at("value").get<std::string>();
      const auto& answer = (*turns)[1].at("value").get_ref<const std::string&>();
      item.output_len = std::max<int32_t>(1, static_cast<int32_t>(answer.size() / 4));
      if (!item.prompt.empty()) items.push_back(std::move(item));
    }
  } catch (const nlohmann::json::exception& exception) {
    return Corrupt("{}: no list of conversations: {}", options.path, exception.what());
  }
  if (items.empty()) return Corrupt("{}: there is no conversation of two turns", options.path);
  std::shuffle(items.begin(), items.end(), *random);
  if (items.size() > static_cast<size_t>(options.num_prompts)) items.resize(static_cast<size_t>(options.num_prompts));
  return items;
}

// A line of a trace: what serve --record wrote, or {"timestamp", "input_length", "output_length", "hash_ids"} (the
// prompt's blocks: the same id, the same text).
WorkItem TraceItem(const nlohmann::json& line, const WorkloadOptions& options) {
  WorkItem item;
  if (line.contains("body")) {
    item.start_us = line.at("arrival_us").get<int64_t>();
    item.body = line.at("body").dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    item.path = line.at("path").get<std::string>();
    return item;
  }
  item.start_us = line.at("timestamp").get<int64_t>() * 1000;
  const int64_t length = std::clamp<int64_t>(line.at("input_length").get<int64_t>(), 1, kMaxLength);
  item.output_len = static_cast<int32_t>(std::clamp<int64_t>(line.at("output_length").get<int64_t>(), 1, kMaxLength));
  int64_t left = length;
  if (const auto ids = line.find("hash_ids"); ids != line.end()) {
    for (const auto& id : *ids) {
      if (left <= 0) break;
      std::mt19937_64 block(id.get<uint64_t>() + static_cast<uint64_t>(options.seed) * 1'000'003);
      Extend(&item, std::min<int64_t>(left, kTraceBlock), options.vocab_size, &block);
      EndBlock(&item, options.vocab_size);
      left -= kTraceBlock;
    }
  }
  std::mt19937_64 rest(static_cast<uint64_t>(item.start_us + options.seed));
  if (left > 0) Extend(&item, left, options.vocab_size, &rest);
  return item;
}

Result<std::vector<WorkItem>> Trace(const WorkloadOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.path, kMaxFileBytes));
  std::vector<WorkItem> items;
  size_t begin = 0;
  for (int number = 1; begin < text.size() && items.size() < static_cast<size_t>(options.num_prompts); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", options.path, number);
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(line, place));
    try {
      items.push_back(TraceItem(json, options));
    } catch (const nlohmann::json::exception& exception) {
      return Corrupt("{}: no line of a trace: {}", place, exception.what());
    }
  }
  if (items.empty()) return Corrupt("{}: there is no request in it", options.path);
  const int64_t first_us = items[0].start_us;
  for (auto& item : items) {
    item.start_us = options.speed > 0 ? static_cast<int64_t>(static_cast<double>(item.start_us - first_us) / options.speed) : 0;
  }
  return items;
}

}  // namespace

Result<std::vector<WorkItem>> MakeWorkload(const WorkloadOptions& options) {
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  std::vector<WorkItem> items;
  if (options.dataset == "sharegpt" && options.path.empty()) {
    items = LikeShareGpt(options, &random);
  } else if (options.dataset == "sharegpt") {
    ASSIGN_OR_RETURN(items, ShareGpt(options, &random));
  } else if (options.dataset == "trace") {
    ASSIGN_OR_RETURN(items, Trace(options));
  } else {
    items = Random(options, &random);
  }
  if (options.request_rate > 0) {
    std::exponential_distribution<double> gap(options.request_rate);
    double seconds = 0.0;
    for (auto& item : items) {
      item.start_us = static_cast<int64_t>(seconds * 1e6);
      seconds += gap(random);
    }
  }
  return items;
}

}  // namespace cachalot
