#include "quant/kv_format.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "quant/kv_rotate.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr int64_t kPlaneAlignment = 16;

constexpr KvFormat kFormats[] = {
    {"k8v8", {KvCode::kInt8, KvCode::kE4M3, 0, 0, 128, true}},
    {"k6v8", {KvCode::kInt6, KvCode::kE4M3, 0, 0, 128, true}},
    {"fp8", {KvCode::kE4M3, KvCode::kE4M3, 0, 0, 128, false}},
    {"k6v4", {KvCode::kInt6, KvCode::kInt4, 0, 32, 128, true}},
    {"k4v4", {KvCode::kInt4, KvCode::kInt4, 32, 32, 32, true}},
};

KvRows PlanRows(KvCode code, int32_t dim, int32_t group, int32_t block_tokens, int64_t* at) {
  const KvCodec& codec = KvCodecOf(code);
  KvRows rows;
  rows.coding = {code, dim, group};
  if (group == 0 || group > rows.coding.padded()) rows.coding.group = rows.coding.padded();
  CHECK(rows.coding.group % kKvUnit == 0) << "groups of " << group;
  const auto plane = [&](int32_t row) {
    const int64_t begin = *at;
    *at += (int64_t{row} * block_tokens + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
    return begin;
  };
  rows.main_row = rows.coding.num_units() * codec.main_bytes;
  rows.high_row = rows.coding.num_units() * codec.high_bytes;
  rows.scale_row = rows.coding.num_groups() * static_cast<int32_t>(sizeof(uint16_t));
  rows.main = plane(rows.main_row);
  rows.high = plane(rows.high_row);
  rows.scales = plane(rows.scale_row);
  return rows;
}

std::string GroupName(int32_t group) { return group == 0 ? "head" : std::to_string(group); }

}  // namespace

std::span<const KvFormat> KvFormats() { return kFormats; }

const KvFormat* FindKvFormat(std::string_view name) {
  const auto* it = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const KvFormat& f) { return f.name == name; });
  return it == std::end(kFormats) ? nullptr : it;
}

KvScheme SinkScheme(const KvScheme& scheme) {
  return {.key = KvCode::kBF16, .value = KvCode::kBF16, .rotate = scheme.rotate};
}

std::string KvSchemeName(const KvScheme& scheme) {
  if (!scheme.quantised()) return "plain";
  return fmt::format("{}/{}-{}/{}-{}{}", KvCodecOf(scheme.key).name, GroupName(scheme.key_group), KvCodecOf(scheme.value).name,
                     GroupName(scheme.value_group), GroupName(scheme.latent_group), scheme.rotate ? "-rotated" : "");
}

KvPlanes PlanKvPlanes(const KvScheme& scheme, const KvVectors& vectors, int32_t block_tokens) {
  KvPlanes planes;
  const int32_t coded = vectors.k_dim - vectors.exact_dim;
  CHECK(scheme.quantised() && coded > 0 && (!vectors.value_in_key || vectors.v_dim == coded));
  int64_t at = 0;
  planes.key = PlanRows(scheme.key, coded, vectors.value_in_key ? scheme.latent_group : scheme.key_group, block_tokens, &at);
  planes.exact = at;
  planes.exact_dim = vectors.exact_dim;
  const int64_t exact_bytes = int64_t{vectors.exact_dim} * block_tokens * static_cast<int64_t>(sizeof(uint16_t));
  at += (exact_bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  planes.value_in_key = vectors.value_in_key;
  planes.value = vectors.value_in_key ? planes.key : PlanRows(scheme.value, vectors.v_dim, scheme.value_group, block_tokens, &at);
  planes.rotation = scheme.rotate ? KvRotationLength(coded) : 1;
  planes.head_bytes = at;
  return planes;
}

void EncodeKvKey(const KvPlanes& planes, const float* mean, float* key, std::byte* head, int64_t token) {
  const KvRows& rows = planes.key;
  const int32_t dim = rows.coding.dim;
  for (int32_t i = 0; i < dim + planes.exact_dim; ++i) key[i] = KvFinite(key[i]);
  for (int32_t i = 0; i < dim && mean != nullptr; ++i) key[i] -= mean[i];
  RotateKv(key, dim, planes.rotation);
  EncodeKvVector(rows.coding, key, rows.Main(head, token), rows.High(head, token), rows.Scales(head, token));
  uint16_t* exact = planes.Exact(head, token);
  for (int32_t i = 0; i < planes.exact_dim; ++i) exact[i] = F32ToBF16(key[dim + i]);
}

void EncodeKvValue(const KvPlanes& planes, const float* value, std::byte* head, int64_t token) {
  const KvRows& rows = planes.value;
  EncodeKvVector(rows.coding, value, rows.Main(head, token), rows.High(head, token), rows.Scales(head, token));
}

void DecodeKvRows(const KvRows& rows, std::byte* head, int64_t token, float* x) {
  DecodeKvVector(rows.coding, rows.Main(head, token), rows.High(head, token), rows.Scales(head, token), x);
}

void DecodeKvKey(const KvPlanes& planes, const float* mean, std::byte* head, int64_t token, float* key) {
  const int32_t dim = planes.key.coding.dim;
  DecodeKvRows(planes.key, head, token, key);
  RotateKv(key, dim, planes.rotation);
  for (int32_t i = 0; i < dim; ++i) key[i] = key[i] / static_cast<float>(planes.rotation) + (mean == nullptr ? 0.0f : mean[i]);
  const uint16_t* exact = planes.Exact(head, token);
  for (int32_t i = 0; i < planes.exact_dim; ++i) key[dim + i] = BF16ToF32(exact[i]);
}

void DecodeKvValue(const KvPlanes& planes, const float* mean, std::byte* head, int64_t token, float* value) {
  DecodeKvRows(planes.value, head, token, value);
  if (!planes.value_in_key) return;
  const int32_t dim = planes.value.coding.dim;
  RotateKv(value, dim, planes.rotation);
  for (int32_t i = 0; i < dim; ++i) value[i] = value[i] / static_cast<float>(planes.rotation) + (mean == nullptr ? 0.0f : mean[i]);
}

}  // namespace cachalot
