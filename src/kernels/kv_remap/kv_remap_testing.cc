#include "kernels/kv_remap/kv_remap_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/status.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv_rotate.h"

namespace cachalot {
namespace {

constexpr uint16_t kPoison = 0xffff;  // a NaN, which never comes out
constexpr int64_t kGuard = 64;
constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

RemapTestTable MakeTable(TestRng* rng, std::span<const int32_t> lengths, int32_t page_tokens) {
  RemapTestTable table;
  table.given = page_tokens > 0;
  const int32_t longest = *std::max_element(lengths.begin(), lengths.end());
  table.page_tokens = table.given ? page_tokens : longest;
  table.num_pages = static_cast<int32_t>(lengths.size());
  if (!table.given) return table;
  table.indptr.push_back(0);
  for (const int32_t length : lengths) {
    const int32_t pages = (length + page_tokens - 1) / page_tokens;
    table.indptr.push_back(table.indptr.back() + pages);
    table.last_page.push_back(pages == 0 ? 0 : length - (pages - 1) * page_tokens);
  }
  table.num_pages = table.indptr.back() + 2;
  table.indices = rng->Permutation(table.num_pages);
  table.indices.resize(static_cast<size_t>(table.indptr.back()));
  return table;
}

// The page and the token within it.
std::pair<int64_t, int64_t> Place(const RemapTestTable& table, int32_t b, int64_t t) {
  if (!table.given) return {b, t};
  return {table.indices[static_cast<size_t>(table.indptr[b] + t / table.page_tokens)], t % table.page_tokens};
}

int64_t SetPlane(KvRemapPlane* plane, int64_t row, int64_t gap, const RemapTestTable& table, int32_t heads, int64_t alignment) {
  const auto up = [&](int64_t n) { return (n + alignment - 1) / alignment * alignment; };
  plane->token = up(row);
  plane->head = up(plane->token * table.page_tokens + gap);
  plane->outer = up(plane->head * heads + gap);
  return plane->outer * table.num_pages;
}

}  // namespace

KvRemapTable RemapTestTable::View() const {
  KvRemapTable view;
  if (given) {
    view.indptr = indptr.data();
    view.indices = indices.data();
    view.last_page = last_page.data();
    view.num_indices = static_cast<int64_t>(indices.size());
  }
  view.num_pages = num_pages;
  view.page_tokens = page_tokens;
  return view;
}

RemapCase RemapCase::Random(TestRng* rng, const RemapShape& shape) {
  RemapCase c;
  c.shape = shape;
  if (shape.to_page == 0) {
    std::fill(c.shape.lengths.begin(), c.shape.lengths.end(), *std::max_element(shape.lengths.begin(), shape.lengths.end()));
  }
  c.from = MakeTable(rng, c.shape.lengths, shape.from_page);
  c.to = MakeTable(rng, c.shape.lengths, shape.to_page);
  KvRemapTensor& t = c.tensor;
  t.code = shape.code;
  t.scale_type = shape.scale;
  t.dim = shape.dim;
  const int32_t groups[] = {0, 8, 32, 64};
  t.group = groups[rng->Int(0, 3)];
  const int32_t num_groups = t.group == 0 ? 1 : (t.dim + t.group - 1) / t.group;
  t.rotation = shape.rotated ? KvRotationLength(t.dim) : 1;
  t.scale = rng->Uniform(0.01f, 2.0f);
  const bool unsigned_code = shape.code < KvRemapCode::kInt8;
  t.zero = unsigned_code ? static_cast<float>(rng->Int(0, 15)) + 0.5f : 0.0f;
  const bool halves = shape.code == KvRemapCode::kF16 || shape.code == KvRemapCode::kBF16;
  const bool aligned = rng->Int(0, 1) == 0;
  c.main.resize(static_cast<size_t>(SetPlane(&t.main, KvRemapMainBytes(t.code, t.dim), aligned ? 0 : 2, c.from, shape.heads, halves ? 2 : aligned ? 16 : 1)));
  c.high.resize(static_cast<size_t>(SetPlane(&t.high, KvRemapHighBytes(t.code, t.dim), 0, c.from, shape.heads, 8)));
  const int64_t scale_size = KvRemapScaleSize(shape.scale);
  c.scales.resize(static_cast<size_t>(SetPlane(&t.scales, scale_size * num_groups, 0, c.from, shape.heads, std::max<int64_t>(scale_size, 1))));
  for (auto* bytes : {&c.main, &c.high}) {
    for (std::byte& byte : *bytes) byte = static_cast<std::byte>(rng->Int(0, 255));
  }
  for (size_t i = 0; scale_size > 0 && i < c.scales.size(); i += static_cast<size_t>(scale_size)) {
    const float value = rng->Uniform(-0.1f, 2.0f);
    const uint16_t half = shape.scale == KvRemapScale::kF16 ? F32ToF16(value) : F32ToBF16(value);
    std::memcpy(&c.scales[i], scale_size == 2 ? static_cast<const void*>(&half) : &value, static_cast<size_t>(scale_size));
  }
  if (shape.rotated) c.mean = rng->NormalVector(int64_t{shape.heads} * t.dim);
  t.mean_head = t.dim;
  const int64_t row = aligned ? (t.dim + 7) / 8 * 8 : t.dim + 3;
  t.out_token = shape.nhd ? row * shape.heads : row;
  t.out_head = shape.nhd ? row : row * c.to.page_tokens;
  t.out_page = row * shape.heads * c.to.page_tokens;
  c.out.resize(static_cast<size_t>(t.out_page * c.to.num_pages + 2 * kGuard), kPoison);
  return c;
}

RemapCase RemapCase::OneRow(KvRemapCode code, int32_t dim, float zero) {
  TestRng rng(1);
  RemapCase c = Random(&rng, {.code = code, .dim = dim, .heads = 1, .lengths = {1}});
  c.tensor.scale = 1;
  c.tensor.zero = zero;
  return c;
}

void RemapCase::SetRow(std::span<const uint8_t> main_row, std::span<const uint8_t> high_row, std::span<const uint8_t> scale_row) {
  std::copy_n(reinterpret_cast<const std::byte*>(main_row.data()), main_row.size(), main.begin());
  std::copy_n(reinterpret_cast<const std::byte*>(high_row.data()), high_row.size(), high.begin());
  std::copy_n(reinterpret_cast<const std::byte*>(scale_row.data()), scale_row.size(), scales.begin());
}

std::string RemapCase::Name() const {
  return fmt::format("code {} scale {} group {} dim {} {} heads {} pages {} to {} {}{}", static_cast<int>(shape.code),
                     static_cast<int>(shape.scale), tensor.group, shape.dim, shape.to_bf16 ? "BF16" : "F16", shape.heads, shape.from_page,
                     shape.to_page, shape.nhd ? "NHD" : "HND", shape.rotated ? " rotated" : "");
}

KvRemapParams RemapCase::Params() {
  KvRemapParams p;
  p.tensors[0] = tensor;
  p.tensors[0].main.data = main.data();
  p.tensors[0].high.data = high.empty() ? nullptr : high.data();
  p.tensors[0].scales.data = scales.empty() ? nullptr : scales.data();
  p.tensors[0].mean = mean.empty() ? nullptr : mean.data();
  p.tensors[0].out = out.data() + kGuard;
  p.num_tensors = 1;
  p.batch = static_cast<int32_t>(shape.lengths.size());
  p.num_heads = shape.heads;
  p.to_bf16 = shape.to_bf16;
  p.from = from.View();
  p.to = to.View();
  return p;
}

std::vector<uint16_t> RemapCase::Result() {
  const auto guard = [](uint16_t bits) { return bits == kPoison; };
  intact_ = std::all_of(out.begin(), out.begin() + kGuard, guard) && std::all_of(out.end() - kGuard, out.end(), guard);
  return {out.begin() + kGuard, out.end() - kGuard};
}

void RemapCase::Poison() { std::fill(out.begin(), out.end(), kPoison); }

bool RemapCase::Untouched() const {
  return std::all_of(out.begin(), out.end(), [](uint16_t bits) { return bits == kPoison; });
}

std::vector<float> RemapCase::Want() const {
  std::vector<float> want(out.size() - 2 * kGuard, kNothing);
  const KvRemapTensor& t = tensor;
  const auto bits_at = [&](const std::byte* row, int64_t bit, int count) {  // of a stream that starts at the lowest bit
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) value |= (static_cast<uint32_t>(row[(bit + i) / 8]) >> ((bit + i) % 8) & 1u) << i;
    return value;
  };
  for (int32_t b = 0; b < static_cast<int32_t>(shape.lengths.size()); ++b) {
    for (int64_t token = 0; token < shape.lengths[static_cast<size_t>(b)]; ++token) {
      const auto [outer, at] = Place(from, b, token);
      const auto [page, out_at] = Place(to, b, token);
      for (int64_t head = 0; head < shape.heads; ++head) {
        const auto row = [&](const std::vector<std::byte>& bytes, const KvRemapPlane& plane) {
          return bytes.data() + outer * plane.outer + head * plane.head + at * plane.token;
        };
        const std::byte *m = row(main, t.main), *h = row(high, t.high), *s = row(scales, t.scales);
        std::vector<float> x(static_cast<size_t>(t.dim));
        for (int64_t i = 0; i < t.dim; ++i) {
          const int64_t g = t.group == 0 ? 0 : i / t.group;
          float scale = t.scale, zero = t.zero;
          uint32_t word = 0;
          if (KvRemapScaleSize(t.scale_type) > 0) {
            std::memcpy(&word, s + g * KvRemapScaleSize(t.scale_type), static_cast<size_t>(KvRemapScaleSize(t.scale_type)));
          }
          if (t.scale_type == KvRemapScale::kF16) scale = F16ToF32(static_cast<uint16_t>(word));
          if (t.scale_type == KvRemapScale::kBF16) scale = BF16ToF32(static_cast<uint16_t>(word));
          if (t.scale_type == KvRemapScale::kF32) scale = std::bit_cast<float>(word);
          if (t.scale_type == KvRemapScale::kF32Zero) zero = static_cast<float>(word % 16), scale = std::bit_cast<float>(word / 16 * 16);
          const int64_t unit = i / 32, in = i % 32;
          const uint32_t half = bits_at(m, (unit * 16 + in % 16) * 8 + in / 16 * 4, t.code == KvRemapCode::kInt4Unit || t.code == KvRemapCode::kInt6Unit ? 4 : 0);
          float value = 0;
          switch (t.code) {
            case KvRemapCode::kInt4: value = static_cast<float>(bits_at(m, i * 4, 4)) - zero; break;
            case KvRemapCode::kInt6: value = static_cast<float>(bits_at(m, i * 6, 6)) - zero; break;
            case KvRemapCode::kInt4Unit: value = static_cast<float>(half) - zero; break;
            case KvRemapCode::kInt6Unit:
              value = static_cast<float>(half + 16 * bits_at(h, unit * 64 + in % 8 * 8 + in / 8 * 2, 2)) - zero;
              break;
            case KvRemapCode::kInt8: value = static_cast<float>(static_cast<int8_t>(m[i])); break;
            case KvRemapCode::kE4M3: value = FP8E4M3ToF32(static_cast<uint8_t>(m[i])); break;
            case KvRemapCode::kF16: value = F16ToF32(static_cast<uint16_t>(bits_at(m, i * 16, 16))); break;
            case KvRemapCode::kBF16: value = BF16ToF32(static_cast<uint16_t>(bits_at(m, i * 16, 16))); break;
          }
          value *= scale;
          x[static_cast<size_t>(i)] = value == value ? value : 0.0f;
        }
        if (t.rotation > 1) {
          RotateKv(x.data(), t.dim, t.rotation);
          for (float& value : x) value /= static_cast<float>(t.rotation);
        }
        for (int64_t i = 0; i < t.dim; ++i) {
          float value = x[static_cast<size_t>(i)];
          if (!mean.empty()) value += mean[static_cast<size_t>(head * t.mean_head + i)];
          want[static_cast<size_t>(page * t.out_page + head * t.out_head + out_at * t.out_token + i)] = value == value ? value : 0.0f;
        }
      }
    }
  }
  return want;
}

std::string RemapCase::FirstWrong(std::span<const uint16_t> got, std::span<const float> want) const {
  if (got.size() != want.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    uint16_t bits = kPoison;
    if (want[i] == want[i] && !shape.to_bf16) bits = F32ToF16(std::clamp(want[i], -65504.0f, 65504.0f));
    if (want[i] == want[i] && shape.to_bf16) {
      const float largest = BF16ToF32(0x7f7f);
      bits = F32ToBF16(std::clamp(want[i], -largest, largest));
    }
    if (bits != got[i]) return fmt::format("value {} of {}: {:#06x}, not {:#06x} ({})", i, got.size(), got[i], bits, want[i]);
  }
  return "";
}

}  // namespace cachalot
