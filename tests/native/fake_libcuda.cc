// A libcuda.so.1 for tests without a GPU: device memory is host memory, tensor maps are checked by the rules of the
// driver API's documentation, and a launch computes the matmul with plain loops, through the tensor maps.
//
// FAKE_CUDA_LOG   file to which every call appends a line of JSON
// FAKE_CUDA_FAIL  "cuMemAlloc=2": the named function returns this CUresult
// FAKE_CUDA_VERSION  the CUDA version that the driver supports, default 13000
// FAKE_CUDA_BUG   what a launch does wrong: "before" or "after" (writes next to D), "unwritten", "unstable"
//
// Devices: 0 is of compute capability 9.0, 1 of 10.0, 2 of 8.0.
//
// Longer than other files: it is one library, whose functions share what was allocated, loaded and logged.
#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fake_numbers.h"
#include "gemm/groups.h"
#include "params.h"

namespace {

using fake::activate;
using fake::load;
using fake::store;
using jaxbw::DataType;
using jaxbw::GemmParams;
using jaxbw::Major;

struct Device {
  const char* name;
  int major, minor, sm_count;
};
constexpr Device kDevices[] = {{"Fake H200", 9, 0, 132}, {"Fake B200", 10, 0, 148}, {"Fake A100", 8, 0, 108}};
constexpr int kDeviceCount = 3;

struct Kernel {
  std::string name;
  int max_shared_memory[kDeviceCount];
  bool large_clusters[kDeviceCount];
};

std::mutex mutex;
std::map<CUdeviceptr, size_t> allocations;
thread_local std::vector<CUcontext> contexts;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void append(std::ostringstream& line, const char* key, const std::string& value) {
  line << ", \"" << key << "\": \"" << value << '"';
}
template <typename Number>
void print(std::ostringstream& line, Number value) {
  line << +value;
}
template <typename Value>
void print(std::ostringstream& line, const std::vector<Value>& values) {
  line << '[';
  for (size_t i = 0; i < values.size(); ++i) {
    line << (i > 0 ? ", " : "");
    print(line, values[i]);
  }
  line << ']';
}
template <typename Value>
void append(std::ostringstream& line, const char* key, const Value& value) {
  line << ", \"" << key << "\": ";
  print(line, value);
}
void append_all(std::ostringstream&) {}
template <typename Value, typename... Rest>
void append_all(std::ostringstream& line, const char* key, const Value& value, const Rest&... rest) {
  append(line, key, value);
  append_all(line, rest...);
}

// Logs a call with key, value pairs, and returns what the call shall return.
template <typename... Pairs>
CUresult record(const char* call, const Pairs&... pairs) {
  if (const std::string path = environment("FAKE_CUDA_LOG"); !path.empty()) {
    std::ostringstream line;
    line << "{\"call\": \"" << call << '"';
    append_all(line, pairs...);
    line << "}\n";
    const std::lock_guard lock(mutex);
    if (FILE* file = std::fopen(path.c_str(), "a")) {
      std::fputs(line.str().c_str(), file);
      std::fclose(file);
    }
  }
  const std::string failing = environment("FAKE_CUDA_FAIL"), prefix = std::string(call) + "=";
  return failing.rfind(prefix, 0) == 0 ? static_cast<CUresult>(std::atoi(failing.c_str() + prefix.size()))
                                       : CUDA_SUCCESS;
}

#define FAKE_RETURN_IF_FAILED(...) \
  if (const CUresult injected = record(__VA_ARGS__); injected != CUDA_SUCCESS) return injected

bool has_context() { return !contexts.empty(); }

// --- Devices and contexts

CUresult init(unsigned) { return record("cuInit"); }

CUresult driver_get_version(int* version) {
  const std::string given = environment("FAKE_CUDA_VERSION");
  *version = given.empty() ? 13000 : std::atoi(given.c_str());
  return record("cuDriverGetVersion");
}

CUresult get_error_name(CUresult error, const char** name) {
  static const std::map<int, const char*> names = {
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},    {100, "CUDA_ERROR_NO_DEVICE"},       {101, "CUDA_ERROR_INVALID_DEVICE"},
      {1, "CUDA_ERROR_INVALID_VALUE"},    {201, "CUDA_ERROR_INVALID_CONTEXT"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {301, "CUDA_ERROR_FILE_NOT_FOUND"}, {500, "CUDA_ERROR_NOT_FOUND"},       {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  const auto found = names.find(error);
  if (found == names.end()) return CUDA_ERROR_INVALID_VALUE;
  *name = found->second;
  return CUDA_SUCCESS;
}

CUresult get_error_string(CUresult, const char** text) {
  *text = "a fake error";
  return CUDA_SUCCESS;
}

CUresult device_get_count(int* count) {
  *count = kDeviceCount;
  return record("cuDeviceGetCount");
}

CUresult device_get(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kDeviceCount) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return record("cuDeviceGet", "ordinal", ordinal);
}

CUresult device_get_name(char* name, int size, CUdevice device) {
  std::snprintf(name, size, "%s", kDevices[device].name);
  return record("cuDeviceGetName");
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = kDevices[device].major;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = kDevices[device].minor;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = kDevices[device].sm_count;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = 50 << 20;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return record("cuDeviceGetAttribute");
}

CUresult device_total_mem(size_t* bytes, CUdevice) {
  *bytes = size_t{141} << 30;
  return record("cuDeviceTotalMem");
}

CUresult primary_ctx_retain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  return record("cuDevicePrimaryCtxRetain", "device", device);
}

CUresult ctx_push(CUcontext context) {
  FAKE_RETURN_IF_FAILED("cuCtxPushCurrent");
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult ctx_pop(CUcontext* context) {
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return record("cuCtxPopCurrent");
}

CUresult ctx_synchronize() { return has_context() ? record("cuCtxSynchronize") : CUDA_ERROR_INVALID_CONTEXT; }

// --- Memory

CUresult mem_alloc(CUdeviceptr* address, size_t bytes) {
  FAKE_RETURN_IF_FAILED("cuMemAlloc", "bytes", bytes);
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(mutex);
  allocations[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult mem_free(CUdeviceptr address) {
  {
    const std::lock_guard lock(mutex);
    if (allocations.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  std::free(reinterpret_cast<void*>(address));
  return record("cuMemFree");
}

CUresult memcpy_to_device(CUdeviceptr target, const void* source, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(target), source, bytes);
  return record("cuMemcpyHtoD", "bytes", bytes);
}

CUresult memcpy_to_host(void* target, CUdeviceptr source, size_t bytes) {
  std::memcpy(target, reinterpret_cast<void*>(source), bytes);
  return record("cuMemcpyDtoH", "bytes", bytes);
}

CUresult memset_bytes(CUdeviceptr target, unsigned char value, size_t bytes) {
  std::memset(reinterpret_cast<void*>(target), value, bytes);
  return record("cuMemsetD8", "value", value, "bytes", bytes);
}

CUresult memset_words(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  std::fill_n(reinterpret_cast<unsigned*>(target), count, value);
  return record("cuMemsetD32Async", "value", value, "count", count, "stream", reinterpret_cast<uintptr_t>(stream));
}

// --- Libraries and kernels

CUresult library_load(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                      unsigned) {
  FAKE_RETURN_IF_FAILED("cuLibraryLoadFromFile", "path", std::string(path));
  if (access(path, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
  usleep(20000);  // long enough for other threads to arrive meanwhile
  *library = reinterpret_cast<CUlibrary>(new std::string(path));
  return CUDA_SUCCESS;
}

CUresult library_get_kernel(CUkernel* kernel, CUlibrary, const char* name) {
  *kernel = reinterpret_cast<CUkernel>(new Kernel{name, {}, {}});
  return record("cuLibraryGetKernel", "name", std::string(name));
}

CUresult kernel_get_function(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return has_context() ? record("cuKernelGetFunction") : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult kernel_set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    reinterpret_cast<Kernel*>(kernel)->max_shared_memory[device] = value;
  } else if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
    reinterpret_cast<Kernel*>(kernel)->large_clusters[device] = value != 0;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return record("cuKernelSetAttribute", "attribute", static_cast<int>(attribute), "value", value, "device", device);
}

unsigned cluster_size(const CUlaunchConfig& launch) {
  for (unsigned i = 0; i < launch.numAttrs; ++i) {
    const auto& dim = launch.attrs[i].value.clusterDim;
    if (launch.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return dim.x * dim.y * dim.z;
  }
  return 1;
}

bool overlaps(const CUlaunchConfig& launch) {
  for (unsigned i = 0; i < launch.numAttrs; ++i) {
    if (launch.attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      return launch.attrs[i].value.programmaticStreamSerializationAllowed != 0;
    }
  }
  return false;
}

CUresult occupancy_max_active_clusters(int* clusters, CUfunction function, const CUlaunchConfig* launch) {
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  const int device = static_cast<int>(reinterpret_cast<uintptr_t>(contexts.back())) - 1;
  if (cluster_size(*launch) > 8 && !reinterpret_cast<const Kernel*>(function)->large_clusters[device]) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *clusters = kDevices[device].sm_count / static_cast<int>(cluster_size(*launch));
  return record("cuOccupancyMaxActiveClusters", "cluster", cluster_size(*launch), "shared_memory",
                launch->sharedMemBytes);
}

// --- Tensor maps: what is encoded here is read back by the launch below.

struct EncodedMap {
  CUdeviceptr address;
  uint64_t dims[3];
  uint64_t strides[2];
  uint64_t type;
};
static_assert(sizeof(EncodedMap) <= sizeof(CUtensorMap));

CUresult tensor_map_encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                           const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                           const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  FAKE_RETURN_IF_FAILED(
      "cuTensorMapEncodeTiled", "type", static_cast<int>(type), "rank", rank, "dims",
      std::vector<uint64_t>(dims, dims + rank), "strides", std::vector<uint64_t>(strides, strides + rank - 1), "box",
      std::vector<uint32_t>(box, box + rank), "element_strides",
      std::vector<uint32_t>(element_strides, element_strides + rank), "interleave", static_cast<int>(interleave),
      "swizzle", static_cast<int>(swizzle), "promotion", static_cast<int>(promotion), "fill", static_cast<int>(fill));
  const bool is_f32 = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const bool is_padded = type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
  const bool is_byte = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 || is_padded;  // in shared memory
  const unsigned alignment = is_padded ? 32 : 16;
  const unsigned element = is_f32    ? 4
                           : is_byte ? 1
                                     : 2,
                 span = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                        : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                        : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                                                               : 4096;
  bool legal =
      (rank == 3 || rank == 4) && reinterpret_cast<uintptr_t>(address) % alignment == 0 &&
      (is_f32 || is_byte || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) &&
      box[0] * element <= span && box[0] * element % 16 == 0 && (!is_padded || (dims[0] % 128 == 0 && box[0] == 128));
  for (unsigned i = 0; i < rank; ++i) {
    legal = legal && dims[i] >= 1 && dims[i] <= uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256;
  }
  for (unsigned i = 0; i + 1 < rank; ++i)
    legal = legal && strides[i] % alignment == 0 && strides[i] < uint64_t{1} << 40;
  if (!legal) return CUDA_ERROR_INVALID_VALUE;
  const EncodedMap encoded{reinterpret_cast<CUdeviceptr>(address),
                           {dims[0], dims[1], dims[2]},
                           {strides[0], strides[1]},
                           static_cast<uint64_t>(type)};
  std::memcpy(map, &encoded, sizeof(encoded));
  return CUDA_SUCCESS;
}

// --- Launch

char* element(const EncodedMap& map, DataType type, uint64_t contiguous, uint64_t outer, uint64_t batch) {
  return reinterpret_cast<char*>(map.address) + contiguous * size_bytes(type) + outer * map.strides[0] +
         batch * map.strides[1];
}

// One operand of a matmul as the kernel named so reads it: through its tensor map, or where it lies.
struct Operand {
  EncodedMap map;
  Major major;
  DataType type;
  uint64_t batched;

  Operand(const jaxbw::TensorMap& encoded, Major major, DataType type, uint64_t batched)
      : major(major), type(type), batched(batched) {
    std::memcpy(&map, &encoded, sizeof(map));
  }
  float at(uint64_t mn, uint64_t k, uint64_t batch) const {
    const bool k_major = major == Major::kK;
    return load(type, element(map, type, k_major ? k : mn, k_major ? mn : k, batched * batch));
  }
};

float load_operand(const jaxbw::EpilogueOperand& operand, uint64_t index) {
  return load(operand.type, static_cast<const char*>(operand.data) + index * size_bytes(operand.type));
}

uint64_t element_index(const GemmParams& p, uint64_t i, uint64_t j, uint64_t batch) {
  return batch * p.batch_stride + i * p.row_stride + j * p.column_stride;
}

// By TMA, or straight into the array.
char* result_element(const GemmParams& p, const jaxbw::TensorMap& encoded, const jaxbw::EpilogueResult& result,
                     uint64_t i, uint64_t j, uint64_t batch) {
  if (p.store_path != jaxbw::StorePath::kTma) {
    return static_cast<char*>(result.data) + element_index(p, i, j, batch) * size_bytes(result.type);
  }
  EncodedMap map;
  std::memcpy(&map, &encoded, sizeof(map));
  return element(map, result.type, j, i, batch);
}

// The scale of a block of K, of A's row or the block of B's column that begins at `index`.
float block_scale(const GemmParams& p, const float* scales, bool batched, uint64_t extent, uint64_t index, uint64_t k,
                  uint64_t batch) {
  const uint64_t k_blocks = (p.k + jaxbw::kScaleBlock - 1) / jaxbw::kScaleBlock;
  return scales == nullptr ? 1 : scales[((batched ? batch * extent : 0) + index) * k_blocks + k / jaxbw::kScaleBlock];
}

// What a wrong kernel does beside, or to, a result of so many elements.
void misbehave(std::string_view bug, const jaxbw::EpilogueResult& output, uint64_t elements) {
  char* first = static_cast<char*>(output.data);
  if (bug == "before") first[-1] = 0;
  if (bug == "after") first[elements * size_bytes(output.type)] = 0;
  static char launches = 0;
  if (bug == "unstable") first[0] = ++launches;
}

void compute(const GemmParams& p, const jaxbw::BlockScales& blocks = {}) {
  const Operand a(p.a, p.a_major, p.a_type, p.a_batched);
  const Operand b(p.b, p.b_major, p.b_type, p.b_batched);
  const Operand b_up(p.b_up, p.b_major, p.b_type, p.b_batched);
  const jaxbw::Epilogue& e = p.epilogue;
  const float alpha = e.alpha_data == nullptr ? e.alpha : *e.alpha_data;
  const float beta = e.beta_data == nullptr ? e.beta : *e.beta_data;
  const auto scale = [](const float* scales, bool batched, uint64_t extent, uint64_t i, uint64_t batch) {
    return scales == nullptr ? 1.0f : scales[(batched ? batch * extent : 0) + i];
  };
  const auto matmul = [&](const Operand& right, const float* scales, uint64_t i, uint64_t j, uint64_t batch) {
    float sum = 0;
    for (uint64_t k = 0; k < p.k; ++k) {
      constexpr uint64_t kBlock = jaxbw::kScaleBlock;
      sum += a.at(i, k, batch) * block_scale(p, blocks.a, p.a_batched, p.m, i, k, batch) * right.at(j, k, batch) *
             block_scale(p, blocks.b, p.b_batched, (p.n + kBlock - 1) / kBlock, j / kBlock, k, batch);
    }
    return alpha * sum * scale(e.a_scales, p.a_batched, p.m, i, batch) * scale(scales, p.b_batched, p.n, j, batch);
  };
  const std::string bug = environment("FAKE_CUDA_BUG");
  const uint64_t elements = uint64_t{p.m} * p.n * p.batch;
  for (uint64_t batch = 0; batch < p.batch; ++batch) {
    for (uint64_t j = 0; j < p.n; ++j) {
      for (uint64_t i = 0; i < p.m; ++i) {
        const uint64_t index = element_index(p, i, j, batch);
        float z = matmul(b, e.b_scales, i, j, batch);
        if (e.c.data != nullptr) z += beta * load_operand(e.c, index);
        if (e.bias.data != nullptr) z += load_operand(e.bias, e.bias_along_m != 0 ? i : j);
        float value = activate(e.activation, z);
        if (p.saved_output[0].data != nullptr) {
          store(p.saved_output[0].type, result_element(p, p.saved[0], p.saved_output[0], i, j, batch), z);
        }
        if (e.gated != 0) {
          const float up = matmul(b_up, e.b_up_scales, i, j, batch);
          value *= up;
          if (p.saved_output[1].data != nullptr) {
            store(p.saved_output[1].type, result_element(p, p.saved[1], p.saved_output[1], i, j, batch), up);
          }
        }
        if (e.residual.data != nullptr) value += load_operand(e.residual, index);
        if (p.out_scale != nullptr) {
          uint32_t bits;
          const float magnitude = std::fabs(value);
          std::memcpy(&bits, &magnitude, sizeof(bits));
          p.amax[batch] = std::max(p.amax[batch], bits);
          value /= *p.out_scale;
        }
        if (bug == "unwritten" && index == elements - 1) continue;
        store(p.output.type, result_element(p, p.d, p.output, i, j, batch), value, p.out_scale != nullptr);
      }
    }
  }
  misbehave(bug, p.output, elements);
}

uint64_t split_tiles_of(const GemmParams& p) {
  return p.work_items == p.whole_tiles ? 0 : (p.work_items - p.whole_tiles) / p.split_k.value;
}

// Whether the parts of tiles are left to another launch.
bool leaves_parts(const GemmParams& p) { return split_tiles_of(p) != 0 && p.counters == nullptr; }

// The parts of every split tile meet at counters, at least one for each of its CTAs; they must be zero.
bool counters_are_ready(const GemmParams& p, unsigned cluster) {
  const uint64_t split_tiles = split_tiles_of(p);
  if (split_tiles == 0) return p.counters == nullptr;
  const auto is_zero = [](uint32_t counter) { return counter == 0; };
  return p.counters != nullptr && std::all_of(p.counters, p.counters + split_tiles * cluster, is_zero);
}

void copy_operand(const jaxbw::RepackCopy& p, size_t size) {
  for (uint64_t batch = 0; batch < p.batch; ++batch) {
    for (uint64_t i = 0; i < p.rows; ++i) {
      for (uint64_t j = 0; j < p.columns; ++j) {
        const uint64_t from =
            p.transposed != 0 ? (batch * p.columns + j) * p.rows + i : (batch * p.rows + i) * p.columns + j;
        std::memcpy(static_cast<char*>(p.destination) + ((batch * p.rows + i) * p.destination_pitch + j) * size,
                    static_cast<const char*>(p.source) + from * size, size);
      }
    }
  }
}

CUresult launch_repack(const CUlaunchConfig* launch, const Kernel& kernel, const jaxbw::RepackParams& p) {
  std::vector<std::vector<uint32_t>> shapes;
  std::vector<uint32_t> pitches, transposed;
  for (const jaxbw::RepackCopy& copy : p.copies) {
    if (copy.pieces == 0) continue;
    shapes.push_back({copy.batch, copy.rows, copy.columns});
    pitches.push_back(copy.destination_pitch);
    transposed.push_back(copy.transposed);
  }
  FAKE_RETURN_IF_FAILED("cuLaunchKernelEx", "kernel", kernel.name, "grid", std::vector<unsigned>{launch->gridDimX},
                        "block", std::vector<unsigned>{launch->blockDimX}, "overlaps", overlaps(*launch), "stream",
                        reinterpret_cast<uintptr_t>(launch->hStream), "shapes", shapes, "pitches", pitches,
                        "transposed", transposed);
  if (environment("FAKE_CUDA_COMPUTE") == "0") return CUDA_SUCCESS;
  const bool is_byte = kernel.name.find("_8bit") != std::string::npos;
  const size_t size = kernel.name.find("32bit") != std::string::npos ? 4 : is_byte ? 1 : 2;
  for (const jaxbw::RepackCopy& copy : p.copies) {
    if (copy.pieces != 0) copy_operand(copy, size);
  }
  return CUDA_SUCCESS;
}

// The whole matmul, where its kernel has left parts: once, and before their sums.
const void* matmul_with_parts = nullptr;

CUresult launch_reduce(const CUlaunchConfig* launch, const Kernel& kernel, const GemmParams& p) {
  FAKE_RETURN_IF_FAILED("cuLaunchKernelEx", "kernel", kernel.name, "grid", std::vector<unsigned>{launch->gridDimX},
                        "block", std::vector<unsigned>{launch->blockDimX}, "shared_memory", launch->sharedMemBytes,
                        "overlaps", overlaps(*launch), "stream", reinterpret_cast<uintptr_t>(launch->hStream));
  if (!leaves_parts(p) || matmul_with_parts != p.output.data) return CUDA_ERROR_INVALID_VALUE;
  matmul_with_parts = nullptr;
  if (environment("FAKE_CUDA_COMPUTE") != "0") compute(p);
  return CUDA_SUCCESS;
}

// Records only.
CUresult launch_quantize(const CUlaunchConfig* launch, const Kernel& kernel, const jaxbw::QuantizeParams& p) {
  FAKE_RETURN_IF_FAILED(
      "cuLaunchKernelEx", "kernel", kernel.name, "grid", std::vector<unsigned>{launch->gridDimX}, "block",
      std::vector<unsigned>{launch->blockDimX}, "overlaps", overlaps(*launch), "stream",
      reinterpret_cast<uintptr_t>(launch->hStream), "pass", static_cast<int>(p.pass), "addresses",
      std::vector<uint64_t>{reinterpret_cast<uint64_t>(p.x), reinterpret_cast<uint64_t>(p.data),
                            reinterpret_cast<uint64_t>(p.scale), reinterpret_cast<uint64_t>(p.transposed),
                            reinterpret_cast<uint64_t>(p.maxima)});
  return CUDA_SUCCESS;
}

// Records only.
CUresult launch_quantize_blocks(const CUlaunchConfig* launch, const Kernel& kernel,
                                const jaxbw::QuantizeBlocksParams& p) {
  const auto address = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  FAKE_RETURN_IF_FAILED(
      "cuLaunchKernelEx", "kernel", kernel.name, "grid", std::vector<unsigned>{launch->gridDimX}, "block",
      std::vector<unsigned>{launch->blockDimX}, "stream", reinterpret_cast<uintptr_t>(launch->hStream), "numbers",
      std::vector<uint32_t>{p.matrix_rows, p.matrix_columns, p.tiles_across.value, p.tiles_of_matrix.value,
                            p.matrices_per_scale.value, p.square, static_cast<uint32_t>(p.element)},
      "addresses",
      std::vector<uint64_t>{address(p.x), address(p.global_scale), address(p.columns.data), address(p.columns.scale),
                            address(p.rows.data), address(p.rows.scale)});
  return CUDA_SUCCESS;
}

CUresult launch_group_table(const CUlaunchConfig* launch, const Kernel& kernel, const jaxbw::GroupTableParams& p) {
  FAKE_RETURN_IF_FAILED("cuLaunchKernelEx", "kernel", kernel.name, "grid", std::vector<unsigned>{launch->gridDimX},
                        "block", std::vector<unsigned>{launch->blockDimX}, "overlaps", overlaps(*launch), "stream",
                        reinterpret_cast<uintptr_t>(launch->hStream), "groups",
                        std::vector<uint32_t>{p.batch, p.total_groups, p.groups, p.rows, p.block_m});
  return CUDA_SUCCESS;
}

// What a kernel of few rows computes, as one that has tensor maps is told.
GemmParams as_gemm(const jaxbw::SkinnyParams& p, uint32_t batch, DataType type, Major b_major) {
  GemmParams gemm = {};
  gemm.m = p.m;
  gemm.n = p.n;
  gemm.k = p.k;
  gemm.batch = batch;
  gemm.a_major = Major::kK;
  gemm.b_major = b_major;
  gemm.a_type = gemm.b_type = type;
  gemm.a_batched = gemm.b_batched = 1;  // by a stride that may be 0
  const auto encode = [&](jaxbw::TensorMap& map, const void* data, uint64_t pitch, uint64_t matrix) {
    const uint64_t size = size_bytes(type);
    const EncodedMap encoded{reinterpret_cast<CUdeviceptr>(data), {}, {pitch * size, matrix * size}, 0};
    std::memcpy(&map, &encoded, sizeof(encoded));
  };
  encode(gemm.a, p.a, p.a_pitch, p.a_matrix);
  encode(gemm.b, p.b, p.b_pitch, p.b_matrix);
  encode(gemm.b_up, p.b_up, p.b_pitch, p.b_matrix);
  gemm.store_path = jaxbw::StorePath::kRows;
  gemm.batch_stride = uint64_t{p.m} * p.n;
  gemm.row_stride = p.n;
  gemm.column_stride = 1;
  gemm.epilogue = p.epilogue;
  gemm.output = p.output;
  return gemm;
}

CUresult launch_skinny(const CUlaunchConfig* launch, const Kernel& kernel, const jaxbw::SkinnyParams& p) {
  const auto has = [&](const char* part) { return kernel.name.find(part) != std::string::npos; };
  const unsigned cluster = cluster_size(*launch);
  const uint32_t batch = launch->gridDimX / cluster / p.order.batch.value;
  FAKE_RETURN_IF_FAILED("cuLaunchKernelEx", "kernel", kernel.name, "grid",
                        std::vector<unsigned>{launch->gridDimX, launch->gridDimY, launch->gridDimZ}, "block",
                        std::vector<unsigned>{launch->blockDimX, launch->blockDimY, launch->blockDimZ}, "cluster",
                        cluster, "shared_memory", launch->sharedMemBytes, "overlaps", overlaps(*launch), "stream",
                        reinterpret_cast<uintptr_t>(launch->hStream), "problem",
                        std::vector<uint32_t>{batch, p.m, p.n, p.k}, "pitches_of",
                        std::vector<uint64_t>{p.a_pitch, p.b_pitch, p.a_matrix, p.b_matrix});
  if (environment("FAKE_CUDA_COMPUTE") == "0") return CUDA_SUCCESS;
  compute(as_gemm(p, batch, has("_f16_") ? DataType::kF16 : DataType::kBF16, has("_nt_") ? Major::kK : Major::kMN));
  return CUDA_SUCCESS;
}

CUresult launch_kernel(const CUlaunchConfig* launch, CUfunction function, void** arguments, void**) {
  const Kernel& kernel = *reinterpret_cast<const Kernel*>(function);
  if (kernel.name.find("_repack_") != std::string::npos) {
    return launch_repack(launch, kernel, *static_cast<const jaxbw::RepackParams*>(arguments[0]));
  }
  if (kernel.name.find("_quantize_blocks_") != std::string::npos) {
    return launch_quantize_blocks(launch, kernel, *static_cast<const jaxbw::QuantizeBlocksParams*>(arguments[0]));
  }
  if (kernel.name.find("_quantize_") != std::string::npos) {
    return launch_quantize(launch, kernel, *static_cast<const jaxbw::QuantizeParams*>(arguments[0]));
  }
  if (kernel.name.find("_group_table_") != std::string::npos) {
    return launch_group_table(launch, kernel, *static_cast<const jaxbw::GroupTableParams*>(arguments[0]));
  }
  if (kernel.name.find("_skinny_") != std::string::npos) {
    return launch_skinny(launch, kernel, *static_cast<const jaxbw::SkinnyParams*>(arguments[0]));
  }
  const auto& p = *static_cast<const GemmParams*>(arguments[0]);  // which those of a grouped matmul begin with
  if (kernel.name.find("_reduce_") != std::string::npos) return launch_reduce(launch, kernel, p);
  const bool along_m = p.order.raster == jaxbw::Raster::kAlongM;
  FAKE_RETURN_IF_FAILED(
      "cuLaunchKernelEx", "kernel", kernel.name, "grid",
      std::vector<unsigned>{launch->gridDimX, launch->gridDimY, launch->gridDimZ}, "block",
      std::vector<unsigned>{launch->blockDimX, launch->blockDimY, launch->blockDimZ}, "cluster", cluster_size(*launch),
      "shared_memory", launch->sharedMemBytes, "overlaps", overlaps(*launch), "stream",
      reinterpret_cast<uintptr_t>(launch->hStream), "problem", std::vector<uint32_t>{p.batch, p.m, p.n, p.k}, "batched",
      std::vector<uint32_t>{p.a_batched, p.b_batched}, "tiles",
      std::vector<uint32_t>{along_m ? p.order.across : p.order.along, along_m ? p.order.along : p.order.across},
      "config",
      std::vector<uint32_t>{p.block_m, p.block_n, p.cluster.m.value, p.cluster.n.value, p.stages, p.order.width.value},
      "majors", std::vector<uint32_t>{static_cast<uint32_t>(p.a_major), static_cast<uint32_t>(p.b_major)}, "has_bias",
      static_cast<int>(p.epilogue.bias.data != nullptr), "tile_columns", p.tile_columns, "k_spans", p.k_spans,
      "accumulators", p.accumulators, "store_path", static_cast<int>(p.store_path), "scheduler",
      static_cast<int>(p.scheduler), "raster", static_cast<int>(p.order.raster), "work",
      std::vector<uint32_t>{p.whole_tiles, p.split_k.value, p.work_items}, "strides",
      std::vector<uint64_t>{p.row_stride, p.column_stride, p.batch_stride}, "b_is_ready", p.b_is_ready, "formula",
      static_cast<int>(p.epilogue.path), "partials", reinterpret_cast<uintptr_t>(p.partials), "counters",
      reinterpret_cast<uintptr_t>(p.counters));
  const unsigned cluster = cluster_size(*launch);
  if (cluster == 0 || launch->gridDimX % cluster != 0 || launch->gridDimX > 0x7fffffffu)
    return CUDA_ERROR_INVALID_VALUE;
  if (launch->sharedMemBytes > 232448) return CUDA_ERROR_INVALID_VALUE;
  if (leaves_parts(p)) {
    matmul_with_parts = p.output.data;
    return CUDA_SUCCESS;
  }
  const auto has = [&](const char* role) { return kernel.name.find(role) != std::string::npos; };
  if (environment("FAKE_CUDA_COMPUTE") == "0" || has("_grouped_") || has("_gathered_")) return CUDA_SUCCESS;
  if (!counters_are_ready(p, cluster)) return CUDA_ERROR_INVALID_VALUE;
  const bool promoted = kernel.name.find("_promoted_") != std::string::npos;
  compute(p, promoted ? static_cast<const jaxbw::PromotedParams*>(arguments[0])->scales : jaxbw::BlockScales{});
  return CUDA_SUCCESS;
}

template <typename Function>
void* pointer(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

extern "C" CUresult cuGetProcAddress_v2(const char* name, void** address, int version, cuuint64_t,
                                        CUdriverProcAddressQueryResult* found) {
  static const std::map<std::string, void*> functions = {
      {"cuInit", pointer(init)},
      {"cuDriverGetVersion", pointer(driver_get_version)},
      {"cuGetErrorName", pointer(get_error_name)},
      {"cuGetErrorString", pointer(get_error_string)},
      {"cuDeviceGetCount", pointer(device_get_count)},
      {"cuDeviceGet", pointer(device_get)},
      {"cuDeviceGetName", pointer(device_get_name)},
      {"cuDeviceGetAttribute", pointer(device_get_attribute)},
      {"cuDeviceTotalMem", pointer(device_total_mem)},
      {"cuDevicePrimaryCtxRetain", pointer(primary_ctx_retain)},
      {"cuCtxPushCurrent", pointer(ctx_push)},
      {"cuCtxPopCurrent", pointer(ctx_pop)},
      {"cuCtxSynchronize", pointer(ctx_synchronize)},
      {"cuLibraryLoadFromFile", pointer(library_load)},
      {"cuLibraryGetKernel", pointer(library_get_kernel)},
      {"cuKernelGetFunction", pointer(kernel_get_function)},
      {"cuKernelSetAttribute", pointer(kernel_set_attribute)},
      {"cuOccupancyMaxActiveClusters", pointer(occupancy_max_active_clusters)},
      {"cuTensorMapEncodeTiled", pointer(tensor_map_encode)},
      {"cuLaunchKernelEx", pointer(launch_kernel)},
      {"cuMemAlloc", pointer(mem_alloc)},
      {"cuMemFree", pointer(mem_free)},
      {"cuMemcpyHtoD", pointer(memcpy_to_device)},
      {"cuMemcpyDtoH", pointer(memcpy_to_host)},
      {"cuMemsetD8", pointer(memset_bytes)},
      {"cuMemsetD32Async", pointer(memset_words)},
  };
  const auto entry = functions.find(name);
  const bool missing = record("cuGetProcAddress", "name", std::string(name), "version", version) != CUDA_SUCCESS ||
                       entry == functions.end();
  *address = missing ? nullptr : entry->second;
  *found = missing ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  return missing ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
