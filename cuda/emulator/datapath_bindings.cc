// The datapaths for Python's tests, one binding after another; that is all its length is.
#include "datapath_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "clc.h"
#include "error.h"
#include "matrix_fragments.h"
#include "tensor_map.h"
#include "tma.h"
#include "tmem.h"
#include "umma.h"
#include "wgmma.h"

namespace jaxbw::emulator {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
std::span<const T> view(const Input<T>& array) {
  return {array.data(), array.size()};
}

template <class T>
Output<T> to_numpy(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  return {owned->data(), {owned->size()}, owner};
}

template <size_t kBytes>
std::span<const uint8_t, kBytes> fixed_bytes(const nb::bytes& bytes) {
  if (bytes.size() != kBytes) throw nb::value_error("wrong number of bytes");
  return std::span<const uint8_t, kBytes>(reinterpret_cast<const uint8_t*>(bytes.c_str()), kBytes);
}

SharedView shared_view(const Input<uint8_t>& bytes, uint32_t base) {
  return {bytes.data(), base, static_cast<uint32_t>(bytes.size())};
}

// Lists from Python are of any length; the entries past the rank keep their defaults.
template <class T, size_t kCount>
void assign(std::array<T, kCount>& target, const std::vector<T>& values) {
  if (values.size() > kCount) throw nb::value_error("too many dimensions");
  std::copy(values.begin(), values.end(), target.begin());
}

template <class T, size_t kCount>
std::vector<T> head(const std::array<T, kCount>& values, uint32_t count) {
  return {values.begin(), values.begin() + std::min<size_t>(count, kCount)};
}

void bind_tensor_map(nb::module_& m) {
  nb::enum_<Swizzle>(m, "Swizzle")
      .value("NONE", Swizzle::kNone)
      .value("B32", Swizzle::k32B)
      .value("B64", Swizzle::k64B)
      .value("B128", Swizzle::k128B)
      .value("B128_ATOM_32B", Swizzle::k128BAtom32B)
      .value("B128_ATOM_32B_FLIP_8B", Swizzle::k128BAtom32BFlip8B)
      .value("B128_ATOM_64B", Swizzle::k128BAtom64B);
  nb::enum_<TensorMapType>(m, "TensorMapType")
      .value("UINT8", TensorMapType::kU8)
      .value("UINT16", TensorMapType::kU16)
      .value("UINT32", TensorMapType::kU32)
      .value("INT32", TensorMapType::kS32)
      .value("UINT64", TensorMapType::kU64)
      .value("INT64", TensorMapType::kS64)
      .value("FLOAT16", TensorMapType::kF16)
      .value("FLOAT32", TensorMapType::kF32)
      .value("FLOAT64", TensorMapType::kF64)
      .value("BFLOAT16", TensorMapType::kBf16)
      .value("FLOAT32_FTZ", TensorMapType::kF32Ftz)
      .value("TFLOAT32", TensorMapType::kTf32)
      .value("TFLOAT32_FTZ", TensorMapType::kTf32Ftz)
      .value("U4X16_ALIGN_8B", TensorMapType::k16U4Align8B)
      .value("U4X16_ALIGN_16B", TensorMapType::k16U4Align16B)
      .value("U6X16_ALIGN_16B", TensorMapType::k16U6Align16B);
  nb::enum_<Interleave>(m, "Interleave")
      .value("NONE", Interleave::kNone)
      .value("B16", Interleave::k16B)
      .value("B32", Interleave::k32B);
  nb::enum_<L2Promotion>(m, "L2Promotion")
      .value("NONE", L2Promotion::kNone)
      .value("B64", L2Promotion::k64B)
      .value("B128", L2Promotion::k128B)
      .value("B256", L2Promotion::k256B);
  nb::enum_<OobFill>(m, "OobFill").value("ZERO", OobFill::kZero).value("NAN", OobFill::kNan);

  nb::class_<TensorMapFields>(m, "TensorMapFields")
      .def(
          "__init__",
          [](TensorMapFields* self, TensorMapType type, uint64_t address, const std::vector<uint64_t>& extents,
             const std::vector<uint64_t>& strides, const std::vector<uint32_t>& box,
             const std::optional<std::vector<uint32_t>>& element_strides, Interleave interleave, Swizzle swizzle,
             L2Promotion l2_promotion, OobFill fill) {
            if (strides.size() + 1 != extents.size() || box.size() != extents.size() ||
                (element_strides && element_strides->size() != extents.size())) {
              throw nb::value_error("extents, box and element_strides need one entry a dimension, strides one fewer");
            }
            new (self) TensorMapFields{.type = type,
                                       .rank = static_cast<uint32_t>(extents.size()),
                                       .address = address,
                                       .interleave = interleave,
                                       .swizzle = swizzle,
                                       .l2_promotion = l2_promotion,
                                       .fill = fill};
            assign(self->extents, extents);
            assign(self->strides, strides);
            assign(self->box, box);
            if (element_strides) assign(self->element_strides, *element_strides);
          },
          "type"_a, "address"_a, "extents"_a, "strides"_a, "box"_a, "element_strides"_a = nb::none(),
          "interleave"_a = Interleave::kNone, "swizzle"_a = Swizzle::kNone, "l2_promotion"_a = L2Promotion::kNone,
          "fill"_a = OobFill::kZero)
      .def_ro("type", &TensorMapFields::type)
      .def_ro("rank", &TensorMapFields::rank)
      .def_ro("address", &TensorMapFields::address)
      .def_prop_ro("extents", [](const TensorMapFields& f) { return head(f.extents, f.rank); })
      .def_prop_ro("strides", [](const TensorMapFields& f) { return head(f.strides, f.rank - 1); })
      .def_prop_ro("box", [](const TensorMapFields& f) { return head(f.box, f.rank); })
      .def_prop_ro("element_strides", [](const TensorMapFields& f) { return head(f.element_strides, f.rank); })
      .def_ro("interleave", &TensorMapFields::interleave)
      .def_ro("swizzle", &TensorMapFields::swizzle)
      .def_ro("l2_promotion", &TensorMapFields::l2_promotion)
      .def_ro("fill", &TensorMapFields::fill)
      .def("__eq__", [](const TensorMapFields& a, const TensorMapFields& b) { return a == b; })
      .def("encode",
           [](const TensorMapFields& f) {
             const auto bytes = encode_tensor_map(f);
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def_static("decode",
                  [](const nb::bytes& bytes) { return decode_tensor_map(fixed_bytes<kTensorMapBytes>(bytes)); });
  m.def("swizzle_address", &swizzle_address, "swizzle"_a, "address"_a);
}

void bind_tma(nb::module_& m) {
  nb::enum_<Reduction>(m, "Reduction")
      .value("ADD", Reduction::kAdd)
      .value("MIN", Reduction::kMin)
      .value("MAX", Reduction::kMax)
      .value("INC", Reduction::kInc)
      .value("DEC", Reduction::kDec)
      .value("AND", Reduction::kAnd)
      .value("OR", Reduction::kOr)
      .value("XOR", Reduction::kXor);
  nb::enum_<TmaDirection>(m, "TmaDirection").value("LOAD", TmaDirection::kLoad).value("STORE", TmaDirection::kStore);
  nb::class_<TmaPiece>(m, "TmaPiece")
      .def_ro("global_address", &TmaPiece::global)
      .def_ro("shared", &TmaPiece::shared)
      .def_ro("bytes", &TmaPiece::bytes)
      .def_ro("count", &TmaPiece::count);
  m.def("tma_box_bytes", &tma_box_bytes, "map"_a);
  m.def(
      "tma_pieces",
      [](const TensorMapFields& map, TmaDirection direction, const std::vector<int32_t>& coordinates, uint32_t shared) {
        std::vector<TmaPiece> pieces;
        tma_pieces(map, direction, coordinates, shared, pieces);
        return pieces;
      },
      "map"_a, "direction"_a, "coordinates"_a, "shared"_a);
  m.def(
      "tma_reduce",
      [](Reduction op, TensorMapType type, const Input<uint8_t>& source, const Input<uint8_t>& destination) {
        std::vector<uint8_t> result(destination.data(), destination.data() + destination.size());
        tma_reduce(op, type, view(source), result);
        return to_numpy(std::move(result));
      },
      "op"_a, "type"_a, "source"_a, "destination"_a);
}

void bind_tmem(nb::module_& m) {
  nb::enum_<TmemShape>(m, "TmemShape")
      .value("S32X32B", TmemShape::k32x32b)
      .value("S16X64B", TmemShape::k16x64b)
      .value("S16X128B", TmemShape::k16x128b)
      .value("S16X256B", TmemShape::k16x256b)
      .value("S16X32BX2", TmemShape::k16x32bx2);
  nb::enum_<TmemCopyShape>(m, "TmemCopyShape")
      .value("S128X256B", TmemCopyShape::k128x256b)
      .value("S4X256B", TmemCopyShape::k4x256b)
      .value("S128X128B", TmemCopyShape::k128x128b)
      .value("S64X128B_WARPX2_02_13", TmemCopyShape::k64x128bWarpx2_02_13)
      .value("S64X128B_WARPX2_01_23", TmemCopyShape::k64x128bWarpx2_01_23)
      .value("S32X128B_WARPX4", TmemCopyShape::k32x128bWarpx4);
  nb::class_<TmemRegion>(m, "TmemRegion")
      .def_ro("lane", &TmemRegion::lane)
      .def_ro("lanes", &TmemRegion::lanes)
      .def_ro("column", &TmemRegion::column)
      .def_ro("columns", &TmemRegion::columns);
  nb::class_<TmemAccess>(m, "TmemAccess")
      .def(
          "__init__",
          [](TmemAccess* self, TmemShape shape, uint32_t repeat, bool packed, uint32_t half_split) {
            new (self) TmemAccess{shape, repeat, packed, half_split};
          },
          "shape"_a, "repeat"_a, "packed"_a = false, "half_split"_a = 0)
      .def("register_count", &tmem_register_count)
      .def("regions", &tmem_access_regions, "address"_a, "warp"_a);
  // A view: writing into it writes tensor memory.
  nb::class_<TensorMemory>(m, "TensorMemory").def(nb::init<>()).def_prop_ro("cells", [](TensorMemory& memory) {
    return nb::ndarray<nb::numpy, uint32_t, nb::ndim<2>>(memory.cells.data(), {kTmemLanes, kTmemColumns},
                                                         nb::find(memory));
  });
  m.def(
      "tmem_load",
      [](const TensorMemory& memory, const TmemAccess& access, uint32_t address, uint32_t warp) {
        std::vector<uint32_t> registers(tmem_register_count(access) * kWarpLanes);
        tmem_load(memory, access, address, warp, registers);
        return to_numpy(std::move(registers));
      },
      "memory"_a, "access"_a, "address"_a, "warp"_a);
  m.def(
      "tmem_store",
      [](TensorMemory& memory, const TmemAccess& access, uint32_t address, uint32_t warp,
         const Input<uint32_t>& registers) { tmem_store(memory, access, address, warp, view(registers)); },
      "memory"_a, "access"_a, "address"_a, "warp"_a, "registers"_a);
  m.def(
      "tmem_copy",
      [](TmemCopyShape shape, const Input<uint8_t>& shared, uint32_t base, uint64_t descriptor, TensorMemory& memory,
         uint32_t address) {
        tmem_copy(shape, shared_view(shared, base), decode_umma_shared_descriptor(descriptor), memory, address);
      },
      "shape"_a, "shared"_a, "base"_a, "descriptor"_a, "memory"_a, "address"_a);
  m.def("tmem_copy_regions", &tmem_copy_regions, "shape"_a, "address"_a);
  nb::class_<TmemAllocator>(m, "TmemAllocator")
      .def(nb::init<>())
      .def("allocate", &TmemAllocator::allocate, "columns"_a)
      .def("deallocate", &TmemAllocator::deallocate, "address"_a, "columns"_a)
      .def("relinquish", &TmemAllocator::relinquish)
      .def("columns_in_use", &TmemAllocator::columns_in_use)
      .def("is_allocated", &TmemAllocator::is_allocated, "column"_a, "columns"_a);
}

void bind_umma(nb::module_& m) {
  nb::enum_<UmmaKind>(m, "UmmaKind")
      .value("F16", UmmaKind::kF16)
      .value("TF32", UmmaKind::kTf32)
      .value("F8F6F4", UmmaKind::kF8F6F4)
      .value("MXF8F6F4", UmmaKind::kMxF8F6F4)
      .value("MXF4", UmmaKind::kMxF4)
      .value("MXF4NVF4", UmmaKind::kMxF4NvF4);
  nb::enum_<NumberFormat>(m, "NumberFormat")
      .value("F16", NumberFormat::kF16)
      .value("BF16", NumberFormat::kBf16)
      .value("TF32", NumberFormat::kTf32)
      .value("E4M3", NumberFormat::kE4M3)
      .value("E5M2", NumberFormat::kE5M2)
      .value("E2M3", NumberFormat::kE2M3)
      .value("E3M2", NumberFormat::kE3M2)
      .value("E2M1", NumberFormat::kE2M1)
      .value("E2M1_PACKED", NumberFormat::kE2M1Packed);
  m.def(
      "decode_chunk",
      [](NumberFormat format, const Input<uint8_t>& chunk) {
        if (chunk.size() != kChunkBytes) throw nb::value_error("a chunk has 16 bytes");
        std::vector<float> values(chunk_elements(format));
        decode_chunk(format, chunk.data(), values.data());
        return to_numpy(std::move(values));
      },
      "format"_a, "chunk"_a);
  m.def("f32_to_f16", [](const Input<float>& values) {
    std::vector<uint16_t> bits(values.size());
    std::transform(values.data(), values.data() + values.size(), bits.begin(), f32_to_f16);
    return to_numpy(std::move(bits));
  });
  m.def("f32_to_bf16", [](const Input<float>& values) {
    std::vector<uint16_t> bits(values.size());
    std::transform(values.data(), values.data() + values.size(), bits.begin(), f32_to_bf16);
    return to_numpy(std::move(bits));
  });

  // `a` is a shared-memory descriptor, or a tensor memory address where a_in_tmem.
  nb::class_<Umma>(m, "Umma")
      .def(
          "__init__",
          [](Umma* self, UmmaKind kind, uint32_t instruction, uint64_t a, uint64_t b, uint32_t d, uint32_t cta_group,
             bool a_in_tmem, bool accumulate, uint32_t scale_input_d,
             const std::array<uint32_t, 8>& disable_output_lane, bool fused_sum, uint32_t sfa, uint32_t sfb,
             uint32_t block) {
            new (self) Umma{.instruction = decode_umma_instruction(instruction, kind),
                            .cta_group = cta_group,
                            .a_in_tmem = a_in_tmem,
                            .a = a_in_tmem ? SharedMatrix{} : decode_umma_shared_descriptor(a),
                            .a_address = a_in_tmem ? static_cast<uint32_t>(a) : 0,
                            .b = decode_umma_shared_descriptor(b),
                            .d_address = d,
                            .accumulate = accumulate,
                            .scale_input_d = scale_input_d,
                            .fused_sum = fused_sum,
                            .disable_output_lane = disable_output_lane,
                            .sfa_address = sfa,
                            .sfb_address = sfb,
                            .block = block};
          },
          "kind"_a, "instruction"_a, "a"_a, "b"_a, "d"_a, "cta_group"_a = 1, "a_in_tmem"_a = false,
          "accumulate"_a = false, "scale_input_d"_a = 0, "disable_output_lane"_a = std::array<uint32_t, 8>{},
          "fused_sum"_a = false, "sfa"_a = 0, "sfb"_a = 0, "block"_a = 32)
      .def("check", &check_umma)
      .def("shared_chunks",
           [](const Umma& op) {
             std::vector<uint32_t> addresses;
             for (const OperandChunk& chunk : umma_shared_chunks(op)) addresses.push_back(chunk.address);
             return addresses;
           })
      .def("d_regions", &umma_d_regions)
      .def("a_regions", &umma_a_regions)
      .def("scale_regions", &umma_scale_regions)
      .def(
          "execute",
          [](const Umma& op, const std::vector<Input<uint8_t>>& shared, uint32_t base,
             const std::vector<TensorMemory*>& tmem) {
            if (shared.size() != tmem.size()) throw nb::value_error("one shared and one tensor memory a CTA");
            std::vector<UmmaCta> ctas;
            for (size_t i = 0; i < shared.size(); ++i) ctas.push_back({shared_view(shared[i], base), tmem[i]});
            execute_umma(op, ctas);
          },
          "shared"_a, "base"_a, "tmem"_a);
}

void bind_wgmma(nb::module_& m) {
  nb::enum_<OperandMajor>(m, "OperandMajor").value("K", OperandMajor::kK).value("MN", OperandMajor::kMN);
  // `a` is a descriptor, or nothing where A is in registers.
  nb::class_<Wgmma>(m, "Wgmma")
      .def(
          "__init__",
          [](Wgmma* self, uint32_t n, NumberFormat a_format, NumberFormat b_format, bool f32_result,
             std::optional<uint64_t> a, uint64_t b, OperandMajor a_major, OperandMajor b_major, bool negate_a,
             bool negate_b, bool accumulate, bool fused_sum) {
            new (self) Wgmma{.n = n,
                             .a_format = a_format,
                             .b_format = b_format,
                             .f32_result = f32_result,
                             .a_in_registers = !a.has_value(),
                             .a = a ? decode_wgmma_shared_descriptor(*a) : SharedMatrix{},
                             .b = decode_wgmma_shared_descriptor(b),
                             .a_major = a_major,
                             .b_major = b_major,
                             .negate_a = negate_a,
                             .negate_b = negate_b,
                             .accumulate = accumulate,
                             .fused_sum = fused_sum};
          },
          "n"_a, "a_format"_a, "b_format"_a, "f32_result"_a, "a"_a.none(), "b"_a, "a_major"_a = OperandMajor::kK,
          "b_major"_a = OperandMajor::kK, "negate_a"_a = false, "negate_b"_a = false, "accumulate"_a = false,
          "fused_sum"_a = false)
      .def("check", &check_wgmma)
      .def("d_registers", &wgmma_d_registers)
      .def("shared_chunks", &wgmma_shared_chunks)
      .def(
          "execute",
          [](const Wgmma& op, const Input<uint8_t>& shared, uint32_t base, const Input<uint32_t>& a,
             const Input<uint32_t>& d) {
            std::vector<uint32_t> result(d.data(), d.data() + d.size());
            execute_wgmma(op, shared_view(shared, base), view(a), result);
            return to_numpy(std::move(result));
          },
          "shared"_a, "base"_a, "a"_a, "d"_a);
}

void bind_small_engines(nb::module_& m) {
  m.def(
      "load_matrices",
      [](bool transposed, const Input<uint8_t>& rows) {
        std::vector<uint32_t> registers(rows.size() / 4);
        load_matrices(transposed, view(rows), registers);
        return to_numpy(std::move(registers));
      },
      "transposed"_a, "rows"_a);
  m.def(
      "store_matrices",
      [](bool transposed, const Input<uint32_t>& registers) {
        std::vector<uint8_t> rows(registers.size() * 4);
        store_matrices(transposed, view(registers), rows);
        return to_numpy(std::move(rows));
      },
      "transposed"_a, "registers"_a);
  m.def(
      "encode_clc_response",
      [](const ClcResponse& response) {
        const auto bytes = encode_clc_response(response);
        return nb::bytes(bytes.data(), bytes.size());
      },
      "response"_a.none());
  m.def(
      "decode_clc_response",
      [](const nb::bytes& bytes) { return decode_clc_response(fixed_bytes<kClcResponseBytes>(bytes)); }, "response"_a);
}

}  // namespace

void bind_emulator_datapath(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("datapath", "The emulator's datapaths as pure functions.");
  bind_tensor_map(m);
  bind_tma(m);
  bind_tmem(m);
  bind_umma(m);
  bind_wgmma(m);
  bind_small_engines(m);
}

}  // namespace jaxbw::emulator
